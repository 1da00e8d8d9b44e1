#pragma once
// A step of sampling rows for the tests of sample: row r is slot r.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "tests/ops/harness.h"

namespace refrain::kernels {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SampleCase {
 public:
  SampleCase(Harness& harness, int32_t rows, int32_t vocab, int32_t shards = 1)
      : params(rows + 1),
        logits(rows * vocab),
        flags(rows, kRowSamples),
        seq_lens(rows, 10),
        output_count((rows + 1) * vocab),
        in_prompt((rows + 1) * vocab),
        bias_token((rows + 1) * kMaxLogitBias),
        bias_value((rows + 1) * kMaxLogitBias),
        mask((rows + 1) * ((vocab + 31) / 32)),
        grammar_mask(mask.size()),
        grammar_ready(rows + 1),
        harness_(harness),
        rows_(rows),
        vocab_(vocab),
        shards_(shards) {
    for (SlotParams& p : params) p.temperature = 0;
  }

  float& logit(int32_t row, int32_t token) { return logits[row * vocab_ + token]; }

  void run(int32_t live = -1) {
    // The last shard is partly padding, which holds poison and large values.
    const int32_t cols = (vocab_ + shards_ - 1) / shards_ + 3;
    const int64_t stride = rows_ * cols + 5;
    std::vector<float> sharded(shards_ * stride, std::nanf(""));
    for (int32_t r = 0; r < rows_; ++r) {
      for (int32_t t = 0; t < shards_ * cols; ++t) {
        sharded[t / cols * stride + r * cols + t % cols] =
            t < vocab_ ? logits[r * vocab_ + t] : 1000.0f;
      }
    }
    SampleArgs args;
    args.logits = harness_.put(sharded);
    args.shards = shards_;
    args.shard_cols = cols;
    args.shard_stride = stride;
    args.vocab_size = vocab_;
    args.tells_logits = tells_logits;
    args.tells_processed = tells_processed;
    std::vector<int32_t> slots(rows_);
    std::iota(slots.begin(), slots.end(), 0);
    args.inputs.row_slot = harness_.put(slots);
    args.inputs.row_flags = harness_.put(flags);
    args.inputs.seq_lens = harness_.put(seq_lens);
    args.slots.num_slots = rows_;
    args.slots.vocab_size = vocab_;
    args.slots.last_token = harness_.put(std::vector<int32_t>(rows_ + 1, -5));
    args.slots.params = harness_.put(params);
    args.slots.output_count = harness_.put(output_count);
    args.slots.in_prompt = harness_.put(in_prompt);
    args.slots.bias_token = harness_.put(bias_token);
    args.slots.bias_value = harness_.put(bias_value);
    args.slots.allowed_mask = harness_.put(mask);
    args.inputs.turn = harness_.put(std::vector<uint32_t>{turn});
    const std::vector<uint32_t> of_another_turn(mask.size());
    for (uint32_t t = 0; t < kTurns; ++t) {
      const bool here = t == turn % kTurns;
      args.grammar[t] = {harness_.put(here ? grammar_mask : of_another_turn),
                         harness_.put(grammar_ready)};
    }
    for (SampleOutputs& out : args.outputs) {
      out.turn = harness_.fresh<uint32_t>(1);
      out.tokens = harness_.fresh<int32_t>(rows_);
      out.logprobs = harness_.fresh<float>(rows_);
      out.top_tokens = harness_.fresh<int32_t>(rows_ * kMaxLogprobs);
      out.top_logprobs = harness_.fresh<float>(rows_ * kMaxLogprobs);
    }
    args.scratch = harness_.fresh<float>(rows_ * vocab_);
    args.rows = {rows_, live < 0 ? nullptr : put_int(harness_, live)};
    harness_.table().sample(harness_.stream(), args);
    const SampleOutputs& out = args.outputs[turn % kTurns];
    const SampleOutputs& other = args.outputs[(turn + 1) % kTurns];
    EXPECT_EQ(harness_.get(out.turn, 1)[0], turn);
    tokens = harness_.get(out.tokens, rows_);
    logprobs = harness_.get(out.logprobs, rows_);
    top_tokens = harness_.get(out.top_tokens, rows_ * kMaxLogprobs);
    top_logprobs = harness_.get(out.top_logprobs, rows_ * kMaxLogprobs);
    EXPECT_EQ(harness_.get(other.turn, 1)[0], ~0u) << "the other turn's outputs stay as they are";
    EXPECT_EQ(harness_.get(other.tokens, rows_), std::vector<int32_t>(rows_, -1));
    EXPECT_TRUE(std::isnan(harness_.get(other.logprobs, rows_)[0]));
    EXPECT_TRUE(std::isnan(harness_.get(other.top_logprobs, rows_)[0]));
    last_token = harness_.get(args.slots.last_token, rows_ + 1);
    output_count = harness_.get(args.slots.output_count, output_count.size());
  }

  uint32_t turn = 7;
  bool tells_logits = false, tells_processed = false;
  std::vector<SlotParams> params;
  std::vector<float> logits;
  std::vector<uint8_t> flags;
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> output_count;
  std::vector<uint8_t> in_prompt;
  std::vector<int32_t> bias_token;
  std::vector<float> bias_value;
  std::vector<uint32_t> mask, grammar_mask, grammar_ready;
  std::vector<int32_t> tokens, top_tokens, last_token;
  std::vector<float> logprobs, top_logprobs;

 private:
  Harness& harness_;
  int32_t rows_, vocab_, shards_;
};

// What vLLM's filters leave of one row, in double precision: token -> probability.
inline std::map<int32_t, double> reference(const std::vector<float>& logits, const SlotParams& p) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const double highest = logits[order[0]];
  const auto weight = [&](int32_t token) {
    return std::exp((logits[token] - highest) / p.temperature);
  };
  std::vector<int32_t> kept;
  for (size_t i = 0; i < order.size(); ++i) {
    if (weight(order[i]) < p.min_p) continue;
    if (p.top_k > 0 && i >= static_cast<size_t>(p.top_k) &&
        logits[order[i]] < logits[order[p.top_k - 1]]) {
      continue;
    }
    kept.push_back(order[i]);
  }
  double total = 0, before = 0, final_total = 0;
  for (const int32_t token : kept) total += weight(token);
  std::map<int32_t, double> result;
  for (const int32_t token : kept) {
    if (before >= p.top_p * total) break;
    before += weight(token);
    result[token] = weight(token);
  }
  for (const auto& [token, w] : result) final_total += w;
  for (auto& [token, w] : result) w /= final_total;
  return result;
}

}  // namespace refrain::kernels
