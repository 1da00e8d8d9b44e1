#include "tests/bench/kernels/smollm_bench.h"

#include <random>

#include "kernels/host/pack.h"
#include "runtime/base/check.h"

namespace refrain::kernels {
namespace {

constexpr int32_t kMaxBlocks = 256;
constexpr int32_t kCacheBlocks = 640;
constexpr int32_t kMaxPositions = 4096;

// Random values of about ± 1/16, any float type.
void fill(void* data, size_t count, DType dtype, uint32_t seed) {
  std::minstd_rand engine(seed + 1);
  for (size_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(engine() & 0xffffu) / 65536.0f - 0.5f) / 8;
    if (dtype == DType::kFloat32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<BFloat16*>(data)[i] = to_bfloat16(value);
    }
  }
}

}  // namespace

SmolBench::SmolBench(BenchTeam& team, HostIsa isa, DType activations, DType weights)
    : team_(team), table_(host_kernel_table(isa)), activations_(activations), weights_(weights) {
  const int64_t qkv = int64_t{shape_.q_heads + 2 * shape_.kv_heads} * shape_.head_dim;
  for (int32_t i = 0; i < shape_.layers; ++i) {
    layers_.push_back({make_weight(qkv, shape_.hidden), make_weight(shape_.hidden, shape_.hidden),
                       make_weight(2 * shape_.intermediate, shape_.hidden),
                       make_weight(shape_.hidden, shape_.intermediate)});
    const size_t cache =
        size_t{2} * kCacheBlocks * shape_.kv_heads * shape_.block_size * shape_.head_dim;
    caches_.push_back(make(cache * size_of(activations_)));
    fill(caches_.back(), cache, activations_, 7);
  }
  head_ = make_weight(shape_.vocab, shape_.hidden);
  auto* norm = static_cast<float*>(make(shape_.hidden * sizeof(float)));
  std::fill_n(norm, shape_.hidden, 1.0f);
  norm_ = norm;
  auto* angles = static_cast<float*>(make(size_t{kMaxPositions} * shape_.head_dim * sizeof(float)));
  fill(angles, size_t{kMaxPositions} * shape_.head_dim, DType::kFloat32, 3);
  cos_sin_ = angles;
}

Weight SmolBench::make_weight(int64_t n, int64_t k) {
  const size_t bytes = tiled16_bytes(n, k, weights_);
  void* data = make(bytes);
  fill(data, bytes / size_of(weights_), weights_, static_cast<uint32_t>(buffers_.size()));
  weight_bytes_ += static_cast<double>(bytes);
  return {data, weights_, WeightLayout::kTiled16, n, k};
}

double SmolBench::flops(const SmolStep& step) const {
  const double tokens = static_cast<double>(step.rows) * step.query_len;
  double per_token = 0;
  for (const Weight& w : layers_[0]) per_token += 2.0 * static_cast<double>(w.n * w.k);
  const double seen = step.context + (step.query_len + 1) / 2.0;
  per_token += 4.0 * seen * shape_.q_heads * shape_.head_dim;
  return tokens * per_token * shape_.layers +
         2.0 * step.rows * static_cast<double>(head_.n * head_.k);
}

void SmolBench::prepare(const SmolStep& step) {
  const int32_t tokens = step.rows * step.query_len;
  step_buffers_.clear();
  const auto make_ints = [&](int64_t count, auto value_of) {
    auto* p = step_buffers_.emplace_back(static_cast<size_t>(count) * 4).as<int32_t>();
    for (int64_t i = 0; i < count; ++i) p[i] = static_cast<int32_t>(value_of(i));
    return p;
  };
  const auto matrix = [&](int64_t rows, int64_t cols, DType dtype) {
    const auto count = static_cast<size_t>(rows * cols);
    void* data = step_buffers_.emplace_back(count * size_of(dtype)).as<void>();
    fill(data, count, dtype, 5);
    return Matrix{data, dtype, cols};
  };
  const int32_t length = step.context + step.query_len;
  const int32_t blocks = (length + shape_.block_size - 1) / shape_.block_size;
  REFRAIN_CHECK(step.rows * blocks < kCacheBlocks && blocks <= kMaxBlocks && length < kMaxPositions,
                "the step needs {} blocks", step.rows * blocks);
  block_table_ = make_ints(int64_t{step.rows} * kMaxBlocks, [&](int64_t i) {
    return 1 + (i / kMaxBlocks * blocks + i % kMaxBlocks * 7 % blocks) % (kCacheBlocks - 1);
  });
  inputs_.live_tokens = inputs_.live_reqs = nullptr;
  inputs_.token_ids = make_ints(tokens, [&](int64_t i) { return i * 997 % shape_.vocab; });
  inputs_.positions =
      make_ints(tokens, [&](int64_t i) { return step.context + i % step.query_len; });
  inputs_.query_start = make_ints(step.rows + 1, [&](int64_t i) { return i * step.query_len; });
  inputs_.seq_lens = make_ints(step.rows, [&](int64_t) { return length; });
  inputs_.row_slot = make_ints(step.rows, [](int64_t i) { return i; });
  inputs_.logit_index =
      make_ints(step.rows, [&](int64_t i) { return (i + 1) * step.query_len - 1; });
  inputs_.row_flags = step_buffers_.emplace_back(step.rows).as<uint8_t>();
  std::fill_n(inputs_.row_flags, step.rows, uint8_t{kRowSamples});
  kv_slots_ = step_buffers_.emplace_back(tokens * sizeof(int64_t)).as<int64_t>();
  for (int32_t t = 0; t < tokens; ++t) {
    const int32_t position = inputs_.positions[t];
    const int32_t* table = block_table_ + int64_t{t / step.query_len} * kMaxBlocks;
    kv_slots_[t] = int64_t{table[position / shape_.block_size]} * shape_.block_size +
                   position % shape_.block_size;
  }
  residual_ = matrix(tokens, shape_.hidden, activations_);
  normed_ = matrix(tokens, shape_.hidden, activations_);
  delta_ = matrix(tokens, shape_.hidden, activations_);
  attended_ = matrix(tokens, shape_.hidden, activations_);
  qkv_ = matrix(tokens, layers_[0][0].n, activations_);
  gate_up_ = matrix(tokens, int64_t{2} * shape_.intermediate, activations_);
  activated_ = matrix(tokens, shape_.intermediate, activations_);
  last_ = matrix(step.rows, shape_.hidden, activations_);
}

void SmolBench::record_layer(int layer, int32_t tokens, int32_t rows) {
  const StreamRef stream = team_.stream();
  const Rows t{tokens, nullptr};
  const auto& w = layers_[layer];
  table_.add_rms_norm(stream, {residual_, delta_, norm_, normed_, shape_.hidden, 1e-5f, t});
  table_.linear(stream, {normed_, w[0], nullptr, {}, qkv_, t});
  RopeKvWriteArgs rope;
  rope.qkv = qkv_;
  rope.positions = inputs_.positions;
  rope.kv_slots = kv_slots_;
  rope.cos_sin = cos_sin_;
  rope.cache = caches_[layer];
  rope.cache_dtype = activations_;
  rope.q_heads = shape_.q_heads;
  rope.kv_heads = shape_.kv_heads;
  rope.head_dim = rope.rotary_dim = shape_.head_dim;
  rope.block_size = shape_.block_size;
  rope.rows = t;
  table_.rope_kv_write(stream, rope);
  AttentionArgs attention;
  attention.q = qkv_;
  attention.out = attended_;
  attention.cache = caches_[layer];
  attention.cache_dtype = activations_;
  attention.inputs = inputs_;
  attention.block_table = block_table_;
  attention.max_blocks = kMaxBlocks;
  attention.q_heads = shape_.q_heads;
  attention.kv_heads = shape_.kv_heads;
  attention.head_dim = shape_.head_dim;
  attention.block_size = shape_.block_size;
  attention.scale = 0.125f;
  attention.tokens = t;
  attention.reqs = {rows, nullptr};
  table_.attention(stream, attention);
  table_.linear(stream, {attended_, w[1], nullptr, {}, delta_, t});
  table_.add_rms_norm(stream, {residual_, delta_, norm_, normed_, shape_.hidden, 1e-5f, t});
  table_.linear(stream, {normed_, w[2], nullptr, {}, gate_up_, t});
  table_.silu_mul(stream, {gate_up_, activated_, shape_.intermediate, t});
  table_.linear(stream, {activated_, w[3], nullptr, {}, delta_, t});
}

void SmolBench::record(const SmolStep& step) {
  prepare(step);
  const int32_t tokens = step.rows * step.query_len;
  const Rows r{step.rows, nullptr};
  const StreamRef stream = team_.stream();
  team_.start_recording();
  table_.embed(stream, {inputs_.token_ids, head_, 0, shape_.vocab, residual_, {tokens, nullptr}});
  for (int32_t layer = 0; layer < shape_.layers; ++layer) record_layer(layer, tokens, step.rows);
  table_.select_rows(stream, {residual_, inputs_.logit_index, last_, shape_.hidden, r});
  table_.rms_norm(stream, {last_, norm_, last_, shape_.hidden, 1e-5f, r});
  const auto count = static_cast<size_t>(step.rows) * shape_.vocab * sizeof(float);
  auto* logits = step_buffers_.emplace_back(count).as<float>();
  table_.linear(stream, {last_, head_, nullptr, {}, {logits, DType::kFloat32, shape_.vocab}, r});
  SampleArgs sample;
  sample.logits = logits;
  sample.shard_cols = sample.vocab_size = shape_.vocab;
  sample.inputs = inputs_;
  sample.slots.vocab_size = shape_.vocab;
  sample.slots.last_token = step_buffers_.emplace_back(step.rows * 4).as<int32_t>();
  sample.slots.params = step_buffers_.emplace_back(step.rows * sizeof(SlotParams)).as<SlotParams>();
  for (int32_t i = 0; i < step.rows; ++i) {
    sample.slots.params[i] = SlotParams{};
    sample.slots.params[i].temperature = 0;
  }
  sample.inputs.turn = step_buffers_.emplace_back(sizeof(uint32_t)).as<uint32_t>();
  SampleOutputs& out = sample.outputs[0];
  out.turn = step_buffers_.emplace_back(sizeof(uint32_t)).as<uint32_t>();
  out.tokens = step_buffers_.emplace_back(step.rows * 4).as<int32_t>();
  out.logprobs = step_buffers_.emplace_back(step.rows * 4).as<float>();
  out.top_tokens = step_buffers_.emplace_back(step.rows * 4 * kMaxLogprobs).as<int32_t>();
  out.top_logprobs = step_buffers_.emplace_back(step.rows * 4 * kMaxLogprobs).as<float>();
  sample.outputs[1] = out;
  sample.scratch = step_buffers_.emplace_back(count).as<float>();
  sample.rows = r;
  table_.sample(stream, sample);
}

}  // namespace refrain::kernels
