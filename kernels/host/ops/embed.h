#pragma once
// embed and select_rows: gathers of rows, latency bound.

#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

// Row n of a kTiled16 or row-major weight, columns [col, col + count), count <= 16.
template <class S, class W>
void copy_weight_row(const Weight& weight, int64_t n, int64_t col, int64_t count, float* out) {
  const auto* data = static_cast<const W*>(weight.data);
  constexpr int64_t kGroup = sizeof(W) == 2 ? 2 : 1;  // inputs side by side in a tile
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = col + i;
    const int64_t at =
        weight.layout == WeightLayout::kRowMajor
            ? n * weight.k + k
            : (n / 16 * weight.k + k / kGroup * kGroup) * 16 + n % 16 * kGroup + k % kGroup;
    if constexpr (sizeof(W) == 2) {
      out[i] = to_float(data[at]);
    } else {
      out[i] = data[at];
    }
  }
}

template <class S>
void embed(const EmbedArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  const int64_t cols = args.table.k;
  for (int64_t t = range.begin; t < range.end; ++t) {
    const int32_t id = args.ids[t];
    const bool here = id >= args.vocab_begin && id < args.vocab_end;
    for (int64_t c = 0; c < cols; c += 16) {
      float values[16] = {};
      const int64_t n = cols - c < 16 ? cols - c : 16;
      if (here && args.table.dtype == DType::kBFloat16) {
        copy_weight_row<S, BFloat16>(args.table, id - args.vocab_begin, c, n, values);
      } else if (here) {
        copy_weight_row<S, float>(args.table, id - args.vocab_begin, c, n, values);
      }
      store16<S>(args.out, t, c, n, S::load(values));
    }
  }
}

template <class S>
void select_rows(const SelectRowsArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  for (int64_t r = range.begin; r < range.end; ++r) {
    for (int64_t c = 0; c < args.cols; c += 16) {
      const int64_t n = args.cols - c;
      store16<S>(args.out, r, c, n, load16<S>(args.in, args.index[r], c, n));
    }
  }
}

}  // namespace refrain::kernels
