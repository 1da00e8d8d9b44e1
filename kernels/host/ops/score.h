#pragma once
// How likely given tokens are. Rows are shared among the threads; each reads its logits a few
// times, from cache.

#include "kernels/core/sample_args.h"
#include "kernels/host/ops/sample.h"

namespace refrain::kernels {

struct RowScores {
  float highest = -std::numeric_limits<float>::infinity();
  int32_t rank = 0;
  Candidate top[kMaxLogprobs];
  int32_t num_top = 0;
};

// f(logits, how many, the first one's token) of every shard that has tokens.
template <class F>
void each_shard(const ScoreTokensArgs& args, int64_t row, F&& f) {
  for (int64_t shard = 0; shard < args.shards; ++shard) {
    const int64_t first = shard * args.shard_cols;
    const int64_t count = std::min(args.shard_cols, args.vocab_size - first);
    if (count > 0) f(args.logits + shard * args.shard_stride + row * args.shard_cols, count, first);
  }
}

// Tokens come in ascending order: of equals the first stays in front.
inline void keep_likely(RowScores& scores, int32_t most, Candidate candidate) {
  int32_t at = scores.num_top;
  if (at == most) {
    if (!(candidate.logit > scores.top[at - 1].logit)) return;
    --at;
  } else {
    ++scores.num_top;
  }
  for (; at > 0 && candidate.logit > scores.top[at - 1].logit; --at)
    scores.top[at] = scores.top[at - 1];
  scores.top[at] = candidate;
}

template <class S>
void score_row(const ScoreTokensArgs& args, int64_t row) {
  const int32_t token = args.tokens[row];
  const int32_t most = std::min({args.num_top[row], kMaxLogprobs, args.vocab_size});
  const float* own = args.logits + token / args.shard_cols * args.shard_stride +
                     row * args.shard_cols + token % args.shard_cols;
  RowScores scores;
  each_shard(args, row, [&](const float* p, int64_t n, int64_t /*first*/) {
    scores.highest = std::max(scores.highest, highest_of<S>(p, n));
  });
  double sum = 0;
  each_shard(args, row, [&](const float* p, int64_t n, int64_t first) {
    sum += total_weight<S>(p, n, scores.highest, 1.0f);
    for (int64_t i = 0; i < n; ++i) {
      scores.rank += p[i] >= *own ? 1 : 0;
      if (most > 0 && p[i] == p[i])
        keep_likely(scores, most, {p[i], static_cast<int32_t>(first + i)});
    }
  });
  const auto log_sum = static_cast<float>(scores.highest + std::log(sum));
  const ScoreOutputs& out = args.outputs;
  out.logprobs[row] = *own - log_sum;
  out.ranks[row] = scores.rank;
  for (int32_t i = 0; i < kMaxLogprobs; ++i) {
    const bool has = i < scores.num_top;
    out.top_tokens[row * kMaxLogprobs + i] = has ? scores.top[i].token : -1;
    out.top_logprobs[row * kMaxLogprobs + i] = has ? scores.top[i].logit - log_sum : 0.0f;
  }
}

template <class S>
void score_tokens(const ScoreTokensArgs& args, const Team& team) {
  const Range range = share_of(args.rows, team);
  for (int64_t row = range.begin; row < range.end; ++row)
    if (args.tokens[row] >= 0) score_row<S>(args, row);
}

}  // namespace refrain::kernels
