// Everything shared is included before the compiler is switched to AVX-512, so that inline
// functions of other headers stay baseline code wherever the linker takes them from.
#include "kernels/host/prepare_inputs.h"
#include "kernels/host/simd/prelude.h"
#include "kernels/host/tables.h"

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#endif

#include "kernels/host/ops/table.h"
#include "kernels/host/simd/avx512.h"

namespace refrain::kernels {

KernelTable avx512_table() { return make_table<host_avx512::Simd>(); }

}  // namespace refrain::kernels

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
