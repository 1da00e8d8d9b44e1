#include "kernels/host/ops/table.h"
#include "kernels/host/simd/scalar.h"
#include "kernels/host/tables.h"

namespace refrain::kernels {

KernelTable scalar_table() { return make_table<host_scalar::Simd>(); }

}  // namespace refrain::kernels
