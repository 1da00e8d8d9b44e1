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
