#pragma once
// linear_recurrence: a pass over the tokens of each request, sixteen columns at a time; bound by
// the chain of a request's tokens when there are few columns, else by memory.

#include "kernels/host/ops/rows.h"
#include "kernels/host/simd/math.h"

namespace refrain::kernels {

// Where the slot's state after the token at `position` is; -1: before the first one.
inline int64_t version_at(const LinearRecurrenceArgs& args, int64_t slot, int64_t position) {
  return slot * args.versions + (position + args.versions) % args.versions;
}

template <class S>
void linear_recurrence(const LinearRecurrenceArgs& args, const Team& team) {
  const Range columns = share_of((args.cols + 15) / 16, team);
  const int64_t reqs = live_rows(args.reqs);
  const Matrix state{args.state, DType::kFloat32, args.cols};
  const auto one = S::broadcast(1.0f);
  for (int64_t row = 0; row < reqs; ++row) {
    const int64_t slot = args.row_slot[row];
    const int64_t begin = args.query_start[row], end = args.query_start[row + 1];
    if (begin == end) continue;
    for (int64_t c = columns.begin * 16; c < columns.end * 16; c += 16) {
      const int64_t n = args.cols - c;
      auto h = load16<S>(state, version_at(args, slot, int64_t{args.positions[begin]} - 1), c, n);
      for (int64_t t = begin; t < end; ++t) {
        const auto gate = load16<S>(args.gate, t, c, n);
        const auto a = S::div(one, S::add(one, exp<S>(S::sub(S::zero(), gate))));
        const auto in = load16<S>(args.in, t, c, n);
        h = S::add(S::mul(a, h), S::mul(S::sub(one, a), in));
        store16<S>(args.out, t, c, n, h);
        if (t >= end - args.versions)
          store16<S>(state, version_at(args, slot, args.positions[t]), c, n, h);
      }
    }
  }
}

}  // namespace refrain::kernels
