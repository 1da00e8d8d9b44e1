#pragma once
// row_distances on the host: memory bound, the same on every instruction set.

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

void launch_row_distances(StreamRef stream, const RowDistancesArgs& args);

}  // namespace refrain::kernels
