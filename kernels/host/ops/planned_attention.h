#pragma once
// Attention by a plan made on the host (kernels/core/attention_units.h), in two launches: the
// units, whose sums of a part of the keys go to memory, and the merge of a token's parts by
// log-sum-exp, in their order. Decode is bound by memory, as attention.h; a shared prefix by
// arithmetic.

#include <cmath>

#include "kernels/host/ops/attention.h"

namespace refrain::kernels {

template <class S>
void planned_attention(const AttentionArgs& args, const Team& team) {
  attend_tiles<S, PlannedTiles>(args, team);
}

// Of the tokens whose keys came in parts.
template <class S>
void merge_attention_parts(const AttentionArgs& args, const Team& team) {
  const int32_t* start = args.planned.plan + kPlanHeader;
  const int64_t dim = args.head_dim, row = dim + 2;
  const int64_t tokens = std::min(args.planned.plan[1], live_rows(args.tokens));
  const Range share = share_of(tokens * args.q_heads, team);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int64_t token = i / args.q_heads, head = i % args.q_heads;
    const int32_t count = start[token + 1] - start[token];
    if (count == 0) continue;
    const float* first = args.planned.parts + (int64_t{start[token]} * args.q_heads + head) * row;
    const int64_t step = args.q_heads * row;
    float highest = -std::numeric_limits<float>::infinity(), total = 0;
    for (int32_t part = 0; part < count; ++part)
      highest = std::max(highest, first[part * step + dim]);
    float weight[kMaxPlanParts];
    for (int32_t part = 0; part < count; ++part) {
      weight[part] = std::exp(first[part * step + dim] - highest);
      total += weight[part] * first[part * step + dim + 1];
    }
    for (int64_t d = 0; d < dim; d += 16) {
      auto sum = S::zero();
      for (int32_t part = 0; part < count; ++part)
        sum = S::fma(S::broadcast(weight[part]), load_float16<S>(first + part * step + d, dim - d),
                     sum);
      store16<S>(args.out, token, head * dim + d, dim - d, S::div(sum, S::broadcast(total)));
    }
  }
}

}  // namespace refrain::kernels
