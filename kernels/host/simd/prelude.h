#pragma once
// What the per-instruction-set headers need from outside. A table_*.cpp includes this before it
// switches the compiler to its instruction set, so that shared inline functions stay baseline code.

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/core/kernel_table.h"
#include "kernels/host/check_args.h"
#include "kernels/host/launcher.h"
#include "kernels/host/ops/shapes.h"
#include "kernels/host/sampling.h"

// What stands between the two is compiled for an instruction set: REFRAIN_BEGIN_TARGET("avx2,fma").
#define REFRAIN_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define REFRAIN_BEGIN_TARGET(features) \
  REFRAIN_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define REFRAIN_END_TARGET REFRAIN_PRAGMA(clang attribute pop)
#else
#define REFRAIN_BEGIN_TARGET(features) \
  REFRAIN_PRAGMA(GCC push_options) REFRAIN_PRAGMA(GCC target(features))
#define REFRAIN_END_TARGET REFRAIN_PRAGMA(GCC pop_options)
#endif
