#include "kernels/host/sampling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

namespace refrain::kernels {
namespace {

bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

double weight_of(const Candidate& candidate, float highest, float temperature) {
  return std::exp((static_cast<double>(candidate.logit) - highest) / temperature);
}

// Which tokens the row may be; null: none, as its grammar's mask did not come in time.
const uint32_t* allowed_mask(const SampleArgs& args, int64_t row, const SlotParams& params) {
  const int64_t words = (int64_t{args.vocab_size} + 31) / 32;
  if (params.follows_grammar == 0)
    return args.slots.allowed_mask + args.inputs.row_slot[row] * words;
  const uint32_t turn = *args.inputs.turn;
  const GrammarMaskInputs& grammar = args.grammar[turn % kTurns];
  return wait_for_grammar(grammar.ready + row, turn) ? grammar.mask + row * words : nullptr;
}

// Drops candidates below the k-th best.
int64_t keep_top_k(Candidate* candidates, int64_t count, int64_t k) {
  if (k <= 0 || k >= count) return count;
  std::nth_element(candidates, candidates + (k - 1), candidates + count, better);
  const float least = candidates[k - 1].logit;
  return std::partition(candidates + k, candidates + count,
                        [least](const Candidate& c) { return c.logit >= least; }) -
         candidates;
}

// Sorts only as far as the cumulative weight needs: the best 64, then 256, 1024, …
int64_t keep_top_p(Candidate* candidates, int64_t count, const SlotParams& params, float highest,
                   double total) {
  const double needed = static_cast<double>(params.top_p) * total;
  double sum = 0;
  int64_t sorted = 0;
  for (int64_t step = 64; sorted < count; step *= 4) {
    const int64_t end = std::min(sorted + step, count);
    if (end < count)
      std::nth_element(candidates + sorted, candidates + end, candidates + count, better);
    std::sort(candidates + sorted, candidates + end, better);
    for (; sorted < end; ++sorted) {
      sum += weight_of(candidates[sorted], highest, params.temperature);
      if (sum >= needed) return sorted + 1;
    }
  }
  return count;
}

// Neither a penalty nor a temperature makes an infinity of a number: -inf would forbid the token.
// NaN stays NaN.
float kept_finite(float changed, float before) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (!(before >= -kMost)) return changed;
  return changed > kMost ? kMost : (changed < -kMost ? -kMost : changed);
}

}  // namespace

bool wait_for_grammar(const uint32_t* ready, uint32_t turn) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(kGrammarPatienceSeconds);
  while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) != turn) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

PhiloxWords philox(uint64_t seed, uint64_t position) {
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

double uniform_draw(uint64_t seed, uint64_t position) {
  const PhiloxWords words = philox(seed, position);
  const uint64_t bits = uint64_t{words.word[1]} << 32 | words.word[0];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

void copy_logits(const SampleArgs& args, int64_t row, float* logits) {
  const int64_t vocab = args.vocab_size;
  for (int64_t shard = 0; shard * args.shard_cols < vocab && shard < args.shards; ++shard) {
    const float* from = args.logits + shard * args.shard_stride + row * args.shard_cols;
    const int64_t first = shard * args.shard_cols;
    std::copy(from, from + std::min(args.shard_cols, vocab - first), logits + first);
  }
}

void process_logits(const SampleArgs& args, int64_t row, const SlotParams& params, float* logits) {
  const int64_t vocab = args.vocab_size;
  const int64_t slot = args.inputs.row_slot[row];
  copy_logits(args, row, logits);
  if (params.has_allowed_mask != 0) {
    const uint32_t* mask = allowed_mask(args, row, params);
    for (int64_t i = 0; i < vocab; ++i) {
      const bool allowed = mask != nullptr && (mask[i / 32] >> (i % 32) & 1u) != 0;
      if (!allowed) logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
  for (int64_t i = 0; i < params.num_logit_bias; ++i) {
    const int32_t token = args.slots.bias_token[slot * kMaxLogitBias + i];
    if (token >= 0 && token < vocab)
      logits[token] += args.slots.bias_value[slot * kMaxLogitBias + i];
  }
  if (params.uses_history == 0 || args.slots.output_count == nullptr) return;
  const int32_t* output = args.slots.output_count + slot * vocab;
  const uint8_t* prompt = args.slots.in_prompt + slot * vocab;
  for (int64_t i = 0; i < vocab; ++i) {
    if (output[i] == 0 && prompt[i] == 0) continue;
    float x = logits[i];
    x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (output[i] != 0) {
      x -= params.frequency_penalty * static_cast<float>(output[i]);
      x -= params.presence_penalty;
    }
    logits[i] = kept_finite(x, logits[i]);
  }
}

int64_t keep_top(Candidate* candidates, int64_t count, const SlotParams& params, float highest,
                 double total) {
  count = keep_top_k(candidates, count, params.top_k);
  if (params.top_p >= 1.0f) {
    if (params.top_k > 0) std::sort(candidates, candidates + count, better);
    return count;
  }
  if (total == 0) {
    std::sort(candidates, candidates + count, better);  // one order of summation
    for (int64_t i = 0; i < count; ++i) {
      total += weight_of(candidates[i], highest, params.temperature);
    }
  }
  return keep_top_p(candidates, count, params, highest, total);
}

void leave_candidates(const Candidate* candidates, int64_t count, float temperature, float* logits,
                      int64_t vocab) {
  std::fill(logits, logits + vocab, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; ++i) {
    const float logit = candidates[i].logit;
    logits[candidates[i].token] = kept_finite(logit / temperature, logit);
  }
}

void scale_logits(float temperature, float* logits, int64_t vocab) {
  constexpr float kLeast = std::numeric_limits<float>::lowest();
  for (int64_t i = 0; i < vocab; ++i) {
    const float logit = logits[i];
    logits[i] = logit >= kLeast ? kept_finite(logit / temperature, logit)
                                : -std::numeric_limits<float>::infinity();
  }
}

int32_t draw_candidate(const Candidate* candidates, int64_t count, float highest, float temperature,
                       double uniform) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += weight_of(candidates[i], highest, temperature);
  const double target = uniform * total;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += weight_of(candidates[i], highest, temperature);
    if (sum > target) return candidates[i].token;
  }
  return candidates[count - 1].token;
}

void top_tokens(const float* logits, int64_t count, int n, Candidate* best) {
  int held = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Candidate candidate{logits[i], static_cast<int32_t>(i)};
    if (std::isnan(candidate.logit)) continue;
    if (held == n && !better(candidate, best[n - 1])) continue;
    int at = held < n ? held++ : n - 1;
    for (; at > 0 && better(candidate, best[at - 1]); --at) best[at] = best[at - 1];
    best[at] = candidate;
  }
  for (; held < n; ++held) best[held] = {-std::numeric_limits<float>::infinity(), -1};
}

}  // namespace refrain::kernels
