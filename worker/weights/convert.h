#pragma once
// Conversions between checkpoint element types. Any thread.

#include <cstdint>

#include "kernels/core/dtype.h"

namespace refrain::worker {

// IEEE half precision from its bits, exact.
float float16_to_float(uint16_t bits);

// `count` elements from (bf16, f16 or f32) to (bf16 or f32), rounding to nearest even. The ranges
// do not overlap.
void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count);

}  // namespace refrain::worker
