// Everything shared is included before the compiler is switched to AVX2, so that inline functions
// of other headers stay baseline code wherever the linker takes them from.
#include "kernels/host/prepare_inputs.h"
#include "kernels/host/simd/prelude.h"
#include "kernels/host/tables.h"

REFRAIN_BEGIN_TARGET("avx2,fma")

#include "kernels/host/ops/table.h"
#include "kernels/host/simd/avx2.h"

namespace refrain::kernels {

KernelTable avx2_table() { return make_table<host_avx2::Simd>(); }

}  // namespace refrain::kernels

REFRAIN_END_TARGET
