#pragma once
// The tables that host_kernel_table() chooses from, one translation unit each.

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

KernelTable scalar_table();
KernelTable avx2_table();
KernelTable avx512_table();
KernelTable avx512_bf16_table();

}  // namespace refrain::kernels
