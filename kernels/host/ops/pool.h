#pragma once
// pool: a pass over the tokens of each request, sixteen columns at a time; bound by memory. Sums go
// from token to token, so that chunks of a prompt give the bits of the whole.

#include "kernels/core/pool_args.h"
#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

template <class S>
void pool(const PoolArgs& args, const Team& team) {
  const PoolOutputs& out = args.outputs[*args.inputs.turn % kTurns];
  if (team.rank == 0) *out.turn = *args.inputs.turn;
  const Range columns = share_of((args.cols + 15) / 16, team);
  const Matrix state{args.state, DType::kFloat32, args.cols};
  const Matrix pooled{out.pooled, DType::kFloat32, args.cols};
  const int64_t reqs = live_rows(args.reqs);
  for (int64_t row = 0; row < reqs; ++row) {
    const int64_t first = args.inputs.query_start[row], end = args.inputs.query_start[row + 1];
    const int64_t slot = args.inputs.row_slot[row], length = args.inputs.seq_lens[row];
    const bool begins = length == end - first;
    const bool ends = (args.inputs.row_flags[row] & kRowSamples) != 0;
    const auto count = S::broadcast(static_cast<float>(length));
    for (int64_t c = columns.begin * 16; c < columns.end * 16; c += 16) {
      const int64_t n = args.cols - c;
      if (args.pooling == Pooling::kLast) {
        if (ends) store16<S>(pooled, row, c, n, load16<S>(args.in, end - 1, c, n));
        continue;
      }
      auto kept = begins ? load16<S>(args.in, first, c, n) : load16<S>(state, slot, c, n);
      const bool mean = args.pooling == Pooling::kMean;
      for (int64_t t = first + (begins ? 1 : 0); mean && t < end; ++t)
        kept = S::add(kept, load16<S>(args.in, t, c, n));
      store16<S>(state, slot, c, n, kept);
      if (ends) store16<S>(pooled, row, c, n, mean ? S::div(kept, count) : kept);
    }
  }
}

}  // namespace refrain::kernels
