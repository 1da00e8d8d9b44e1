#pragma once
// Packs rows of a weight from row-major host memory into the host kernels' layout, as a launch the
// team shares. Any weight dtype the kernels take (bfloat16, float32).

#include <cstdint>

#include "kernels/core/kernel_table.h"

namespace refrain::worker {

// Rows [row_begin, row_begin + rows) of the weight at `to`; zeroes the padding after its last row.
// Arguments as Device::upload_weight.
void launch_upload(kernels::StreamRef stream, const kernels::Weight& weight, void* to,
                   int64_t row_begin, int64_t rows, const void* source);

}  // namespace refrain::worker
