#pragma once
// Descriptors of the copy engine (TMA): rectangles of a row-major bfloat16 matrix, read into shared
// memory by one instruction. Made on the host when a launch is recorded; passed by value.

#include <cuda.h>

#include <cstdint>
#include <span>

namespace refrain::kernels {

// A dimension of a tensor of up to five: how many there are, how far apart (in elements, of the
// first 1, of the others a multiple of 8), how many of them in a box.
struct TensorDim {
  int64_t size, stride;
  uint32_t box;
};

// Boxes of a bfloat16 tensor, the first dimension innermost: 64 elements of it where they are
// swizzled. data is a multiple of 16 bytes. What lies outside reads as 0. `ask`: L2 asks the memory
// for so many bytes of a row at once.
enum class L2Ask { k128, k256 };
CUtensorMap make_tensor_map(const void* data, std::span<const TensorDim> dims, bool swizzled,
                            L2Ask ask = L2Ask::k128);

// The matrix [rows, cols] at `data`, rows `stride` elements apart, in boxes of [box_rows,
// box_cols]. data and stride are multiples of 16 bytes, box_cols at most 64. What lies outside
// reads as 0. Swizzled: 16-byte unit u of row r of a box of 64 columns is at unit u ^ (r % 8); the
// box starts at a multiple of 1024 bytes.
CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride,
                            uint32_t box_rows, uint32_t box_cols, bool swizzled);

}  // namespace refrain::kernels
