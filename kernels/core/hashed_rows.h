#pragma once
// Arguments of a fill with made-up numbers, for --load-format dummy.

#include <cstdint>

#include "kernels/core/dtype.h"

namespace refrain::kernels {

// Rows of a made-up weight: element (i, j) is offset + scale * u, u on (-1, 1) being hashed from
// base + first + i * stride + j alone, without fused products: equal bits on every device.
struct HashedRows {
  void* to = nullptr;  // [rows, cols] of dtype, row-major, on the device
  DType dtype = DType::kBFloat16;
  int64_t rows = 0, cols = 0;
  int64_t first = 0, stride = 0;
  uint64_t base = 0;
  float scale = 0, offset = 0;
};

}  // namespace refrain::kernels
