// Everything shared is included before the compiler is switched to AVX-512, so that inline
// functions of other headers stay baseline code wherever the linker takes them from.
#include "kernels/host/prepare_inputs.h"
#include "kernels/host/simd/prelude.h"
#include "kernels/host/tables.h"

REFRAIN_BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/host/ops/table.h"
#include "kernels/host/simd/avx512.h"

namespace refrain::kernels {

KernelTable avx512_table() { return make_table<host_avx512::Simd>(); }

}  // namespace refrain::kernels

REFRAIN_END_TARGET
