#pragma once
// One sampled token a row. Greedy rows without extras read their logits once (memory bound); other
// rows are processed in float scratch. The draw is the inverse CDF at uniform_draw(seed, seq_len):
// over the tokens in ascending order, or, with top-k or top-p on, over those kept, most likely
// first. A row whose logits hold no number above -inf gives token -1.

#include "kernels/host/ops/rows.h"
#include "kernels/host/simd/math.h"

namespace refrain::kernels {

inline constexpr int64_t kVocabChunk = 1024;  // tokens summed in float before a sum in double

template <class S>
float highest_of(const float* p, int64_t n) {
  auto top = S::broadcast(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) top = S::max(S::load(p + i), top);  // NaN never wins
  float highest = S::max_lane(top);
  for (; i < n; ++i) highest = p[i] > highest ? p[i] : highest;
  return highest;
}

// Keeps in `best` the highest logit and its lowest token (`first` is p[0]'s).
template <class S>
void find_highest(const float* p, int64_t n, int64_t first, Candidate& best) {
  for (int64_t c = 0; c < n; c += kVocabChunk) {
    const int64_t count = std::min(kVocabChunk, n - c);
    const float highest = highest_of<S>(p + c, count);
    if (!(highest > best.logit)) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (p[c + i] != highest) continue;
      best = {highest, static_cast<int32_t>(first + c + i)};
      break;
    }
  }
}

// What the ranks found in their parts of the row; slices come in the order of their tokens.
inline Candidate best_of_ranks(const SampleArgs& args, int64_t row) {
  Candidate best{-std::numeric_limits<float>::infinity(), -1};
  for (int64_t shard = 0; shard < args.shards; ++shard) {
    const float* p = args.best + (shard * args.rows.padded + row) * args.best_parts * 2;
    for (int32_t part = 0; part < args.best_parts; ++part, p += 2) {
      if (p[0] > best.logit) best = {p[0], static_cast<int32_t>(p[1])};
    }
  }
  return best;
}

template <class S>
Candidate greedy_from_shards(const SampleArgs& args, int64_t row) {
  if (args.best != nullptr) return best_of_ranks(args, row);
  Candidate best{-std::numeric_limits<float>::infinity(), -1};
  for (int64_t shard = 0; shard < args.shards; ++shard) {
    const int64_t first = shard * args.shard_cols;
    const int64_t count = std::min(args.shard_cols, args.vocab_size - first);
    const float* p = args.logits + shard * args.shard_stride + row * args.shard_cols;
    if (count > 0) find_highest<S>(p, count, first, best);
  }
  return best;
}

// weights[i] = exp((logits[i] - highest) * scale) for n <= kVocabChunk, 0 for NaN; returns the sum.
template <class S>
float chunk_weights(const float* logits, int64_t n, float highest, float scale, float* weights) {
  auto sum = S::zero();
  for (int64_t i = 0; i < n; i += 16) {
    const int valid = static_cast<int>(std::min<int64_t>(16, n - i));
    const auto x = S::mul(S::sub(load_float16<S>(logits + i, n - i), S::broadcast(highest)),
                          S::broadcast(scale));
    // Below the range of exp (masked tokens are -inf) a weight is exactly 0.
    auto w = S::select_range(0, valid, exp<S>(x), S::zero());
    alignas(64) float lanes[16], raw[16];
    S::store(lanes, w);
    S::store(raw, x);
    for (int j = 0; j < 16; ++j) lanes[j] = raw[j] > -87.0f ? lanes[j] : 0.0f;
    w = S::load(lanes);
    S::store(weights + i, w);
    sum = S::add(sum, w);
  }
  return S::sum(sum);
}

template <class S>
double total_weight(const float* logits, int64_t n, float highest, float scale) {
  alignas(64) float weights[kVocabChunk];
  double total = 0;
  for (int64_t c = 0; c < n; c += kVocabChunk) {
    total += chunk_weights<S>(logits + c, std::min(kVocabChunk, n - c), highest, scale, weights);
  }
  return total;
}

template <class S>
int32_t draw_from_all(const float* logits, int64_t n, float highest, float scale, double uniform) {
  alignas(64) float weights[kVocabChunk];
  const double target = uniform * total_weight<S>(logits, n, highest, scale);
  double before = 0;
  int32_t last = -1;  // rounding may leave the target past the end
  for (int64_t c = 0; c < n; c += kVocabChunk) {
    const int64_t count = std::min(kVocabChunk, n - c);
    const double sum = chunk_weights<S>(logits + c, count, highest, scale, weights);
    if (sum == 0) continue;
    const bool here = before + sum > target;
    double at = before;
    for (int64_t i = 0; i < count; ++i) {
      if (weights[i] == 0) continue;
      last = static_cast<int32_t>(c + i);
      at += weights[i];
      if (here && at > target) return last;
    }
    if (here) return last;
    before += sum;
  }
  return last;
}

// Candidates at or above a threshold that cannot cut what min-p and top-p keep.
template <class S>
int64_t collect(const float* logits, int64_t n, float least, Candidate* out) {
  int64_t count = 0;
  for (int64_t c = 0; c < n; c += 64) {
    const int64_t end = std::min(n, c + 64);
    if (!(highest_of<S>(logits + c, end - c) >= least)) continue;
    for (int64_t i = c; i < end; ++i) {
      if (logits[i] >= least) out[count++] = {logits[i], static_cast<int32_t>(i)};
    }
  }
  return count;
}

// `tells`: the logits are made those that the row draws from.
template <class S>
int32_t draw_token(const SlotParams& params, float* logits, int64_t n, float highest,
                   double uniform, bool tells, const Team& team) {
  const float scale = 1.0f / params.temperature;
  if (params.top_k <= 0 && params.top_p >= 1.0f && params.min_p <= 0.0f) {
    const int32_t token = draw_from_all<S>(logits, n, highest, scale, uniform);
    if (tells) scale_logits(params.temperature, logits, n);
    return token;
  }
  auto* candidates = reinterpret_cast<Candidate*>(team.scratch);
  double total = 0;
  float least = std::numeric_limits<float>::lowest();
  if (params.min_p > 0.0f) {
    least = highest + params.temperature * std::log(params.min_p);
  } else if (params.top_k <= 0) {
    // Tokens lighter than (1 - p) / n of the total weigh less than 1 - p together: top-p drops all.
    total = total_weight<S>(logits, n, highest, scale);
    const double light = (1.0 - params.top_p) * total / static_cast<double>(n);
    if (light > 0)
      least = highest + params.temperature * static_cast<float>(std::log(light)) - 0.01f;
  }
  least = std::min(least, highest);
  int64_t count = collect<S>(logits, n, least, candidates);
  count = keep_top(candidates, count, params, highest, total);
  if (tells) leave_candidates(candidates, count, params.temperature, logits, n);
  return draw_candidate(candidates, count, highest, params.temperature, uniform);
}

template <class S>
void write_logprobs(const SampleArgs& args, const SampleOutputs& out, int64_t row, int n,
                    const float* logits, float highest, int32_t token) {
  const double sum = total_weight<S>(logits, args.vocab_size, highest, 1.0f);
  const float log_sum = args.tells_logits ? 0 : static_cast<float>(highest + std::log(sum));
  out.logprobs[row] = logits[token] - log_sum;
  Candidate best[kMaxLogprobs];
  n = std::min({n, kMaxLogprobs, args.vocab_size});
  if (n > 0) top_tokens(logits, args.vocab_size, n, best);
  for (int i = 0; i < n; ++i) {
    out.top_tokens[row * kMaxLogprobs + i] = best[i].token;
    out.top_logprobs[row * kMaxLogprobs + i] = best[i].logit - log_sum;
  }
}

template <class S>
int32_t sample_row(const SampleArgs& args, const SampleOutputs& out, int64_t row,
                   const Team& team) {
  const int64_t slot = args.inputs.row_slot[row];
  const SlotParams& params = args.slots.params[slot];
  const bool greedy = params.temperature <= kGreedyTemperature;
  if (is_plain_greedy(params)) return greedy_from_shards<S>(args, row).token;
  float* logits = args.scratch + row * args.vocab_size;
  process_logits(args, row, params, logits);
  Candidate best{-std::numeric_limits<float>::infinity(), -1};
  find_highest<S>(logits, args.vocab_size, 0, best);
  int32_t token = best.token;
  if (!greedy && token >= 0) {
    const auto position = static_cast<uint64_t>(args.inputs.seq_lens[row]);
    const bool tells = args.tells_processed && params.num_logprobs >= 0;
    token = draw_token<S>(params, logits, args.vocab_size, best.logit,
                          uniform_draw(params.seed, position), tells, team);
  }
  if (params.num_logprobs >= 0 && token >= 0) {
    if (!args.tells_processed && changes_logits(params)) copy_logits(args, row, logits);
    const float highest = highest_of<S>(logits, args.vocab_size);
    write_logprobs<S>(args, out, row, params.num_logprobs, logits, highest, token);
  }
  return token;
}

template <class S>
void best_tokens(const BestTokensArgs& args, const Team& team) {
  const int64_t live = live_rows(args.rows);
  const int64_t slice = (args.num_tokens + kBestParts - 1) / kBestParts;
  const Range range = share_of(int64_t{args.rows.padded} * kBestParts, team);
  for (int64_t at = range.begin; at < range.end; ++at) {
    const int64_t row = at / kBestParts, begin = at % kBestParts * slice;
    const bool samples = row < live && (args.inputs.row_flags[row] & kRowSamples) != 0;
    if (!samples || !is_plain_greedy(args.params[args.inputs.row_slot[row]])) continue;
    Candidate best{-std::numeric_limits<float>::infinity(), -1};
    const int64_t count = std::min<int64_t>(slice, args.num_tokens - begin);
    const float* logits = static_cast<const float*>(args.logits.data) + row * args.logits.stride;
    if (count > 0) find_highest<S>(logits + begin, count, args.first_token + begin, best);
    args.best[at * 2] = best.logit;
    args.best[at * 2 + 1] = static_cast<float>(best.token);
  }
}

template <class S>
void sample(const SampleArgs& args, const Team& team) {
  const int64_t live = live_rows(args.rows);
  const SampleOutputs& out = args.outputs[*args.inputs.turn % kTurns];
  if (team.rank == 0) *out.turn = *args.inputs.turn;
  const Range range = share_of(args.rows.padded, team);
  for (int64_t row = range.begin; row < range.end; ++row) {
    int32_t* top = out.top_tokens + row * kMaxLogprobs;
    float* top_logprobs = out.top_logprobs + row * kMaxLogprobs;
    std::fill(top, top + kMaxLogprobs, -1);
    std::fill(top_logprobs, top_logprobs + kMaxLogprobs, 0.0f);
    out.logprobs[row] = 0;
    out.tokens[row] = -1;
    if (row >= live || (args.inputs.row_flags[row] & kRowSamples) == 0) continue;
    const int32_t token = sample_row<S>(args, out, row, team);
    const int64_t slot = args.inputs.row_slot[row];
    out.tokens[row] = token;
    if (args.slots.last_token == nullptr) continue;
    args.slots.last_token[slot] = token;
    if (token >= 0 && args.slots.params[slot].uses_history != 0 &&
        args.slots.output_count != nullptr) {
      ++args.slots.output_count[slot * args.vocab_size + token];
    }
  }
}

}  // namespace refrain::kernels
