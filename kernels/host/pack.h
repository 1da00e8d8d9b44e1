#pragma once
// Packing of row-major weights into the kTiled16 layout (op_args.h). Plain functions, any thread;
// the weight loader calls them while it reads, a range of rows at a time.

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "runtime/base/result.h"

namespace refrain::kernels {

// Bytes of a packed [n, k] weight, its padding rows included. dtype: kBFloat16 or kFloat32.
size_t tiled16_bytes(int64_t n, int64_t k, DType dtype);

// Row-major source rows: row i begins `row_stride` elements after row i - 1.
struct RowMajorSource {
  const void* data = nullptr;
  DType dtype = DType::kBFloat16;  // kBFloat16, kFloat16 or kFloat32
  int64_t row_stride = 0;          // elements
};

// Writes rows [n_begin, n_begin + rows) of a packed weight whose first byte is `out`, from
// `source`'s first `rows` rows of `k` columns, rounding to `to` (ties to even). Calls for disjoint
// row ranges may run at the same time. Rows that no call writes must be zeroed by the caller or by
// pad_tiled16. Errors: an odd k with kBFloat16, element types other than those named.
Status pack_tiled16(const RowMajorSource& source, int64_t rows, int64_t k, DType to, void* out,
                    int64_t n_begin);

// Zeroes the padding rows n … ceil(n / 16) * 16 of a packed weight.
void pad_tiled16(void* out, int64_t n, int64_t k, DType dtype);

// Value of a float16.
float float16_to_float(uint16_t bits);

}  // namespace refrain::kernels
