#pragma once
// Descriptors of the copy engine (TMA): rectangles of a row-major bfloat16 matrix, read into shared
// memory by one instruction. Made on the host when a launch is recorded; passed by value.

#include <cuda.h>

#include <array>
#include <cstdint>

namespace refrain::kernels {

// The matrix [rows, cols] at `data`, rows `stride` elements apart, in boxes of [box_rows,
// box_cols]. data and stride are multiples of 16 bytes, box_cols at most 64. What lies outside
// reads as 0. Swizzled: 16-byte unit u of row r of a box of 64 columns is at unit u ^ (r % 8); the
// box starts at a multiple of 1024 bytes.
CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride,
                            uint32_t box_rows, uint32_t box_cols, bool swizzled);

// Boxes of a tensor of three dimensions, the columns first: sizes, distances of the second and of
// the third in elements (growing), box. 64 columns a box, swizzled as above by the box's rows.
CUtensorMap make_tensor_map_3d(const void* data, const std::array<int64_t, 3>& sizes,
                               const std::array<int64_t, 2>& strides,
                               const std::array<uint32_t, 3>& box);

}  // namespace refrain::kernels
