#include "worker/runner/step_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "worker/graph/interpreter.h"

namespace refrain::worker {
namespace {

using kernels::RowDistance;
using Move = StateRows::Move;
using State = StateRows::State;

// Of the largest magnitude beside it. Two runs of a deep network in bfloat16 differ by a few per
// cent of the typical magnitude; a wrong row, key or length by more than the whole of it.
constexpr float kBound = 0.15f, kFloat32Bound = 0.005f;

BatchDescriptor real_key(const BatchShape& batch) {
  return {batch.num_tokens, batch.num_reqs, batch.uniform, batch.has_lora};
}

}  // namespace

struct StepAudit::Findings {
  std::string where;  // program and key
  bool bitwise;
  ipc::AuditResult result;

  bool beyond(float worst, DType dtype) const {
    return worst > (bitwise ? 0.0f : dtype == DType::kFloat32 ? kFloat32Bound : kBound);
  }
  void note(const std::string& what) {
    ++result.differences;
    if (result.first.empty()) result.first = fmt::format("{}: {}", where, what);
  }
};

StepAudit::StepAudit(Device& device, const Lowering& plain, const KvCache& cache,
                     const InputSizes& sizes, const SlotStates& slots)
    : state_(cache, slots, sizes.block_size), nan_(device, 0xff) {
  const auto tokens = static_cast<size_t>(sizes.max_tokens);
  const auto reqs = static_cast<size_t>(sizes.max_reqs);
  const size_t of_one_layer = std::max<size_t>(state_.largest_layer(sizes.max_tokens), 1);
  size_t of_all = 1;
  for (const PagedLayer& layer : state_.layers()) {
    of_all += StateRows::row_bytes(layer, sizes.max_tokens);
    num_parts_ += layer.layout.parts.size();
  }
  size_t state_bytes = 1;
  state_.each_state([&](const State& state) {
    state_bytes += reqs * state.slot_bytes();
    ++num_states_;
  });
  const auto logit_rows = static_cast<size_t>(max_logit_rows(plain.program));
  const LogitShards logits(plain, max_logit_rows(plain.program));
  const auto shards = static_cast<size_t>(logits.shards);
  first_rows_ = device.allocate(of_one_layer, MemoryTag::kOther);
  rows_ = device.allocate(of_one_layer, MemoryTag::kOther);
  kept_rows_ = device.allocate_pinned(of_all);
  first_logits_ = device.allocate(shards * static_cast<size_t>(logits.stride) * sizeof(float),
                                  MemoryTag::kOther);
  for (auto* states : {&states_before_, &first_states_}) {
    *states = device.allocate(state_bytes, MemoryTag::kOther);
  }
  distances_ = device.allocate_pinned(
      (num_parts_ * tokens + num_states_ * reqs + shards * logit_rows) * sizeof(RowDistance));
  slots_ = device.allocate_pinned(tokens * sizeof(int64_t));
  last_token_ = device.allocate((reqs + 1) * sizeof(int32_t), MemoryTag::kOther);
  sampled_ = allocate_outputs(device, plain.program, outputs_);
  const ValueId sampled = sample_op(plain.program).tokens;
  tokens_ = static_cast<const int32_t*>(outputs_[static_cast<size_t>(sampled)][0]);
  words_ = device.allocate_pinned(std::max<size_t>(logit_rows, 2) * sizeof(int32_t));
}

ipc::AuditResult StepAudit::run(const Audited& step, const Lowering& plain, Stream& stream,
                                bool bitwise) {
  Findings findings{fmt::format("program {}, key {} {} ({} requests{})", plain.program.name,
                                ipc::to_string(step.mode), step.key.num_tokens, step.key.num_reqs,
                                step.key.uniform ? ", uniform" : ""),
                    bitwise,
                    {}};
  findings.result.audited = true;
  judge_inputs(step, stream, findings);
  keep(step, stream);
  run_again(step, plain, stream, bitwise);
  compare_and_restore(step, plain, stream);
  stream.synchronize();
  judge_cache(step, findings);
  judge_rows(step, plain, stream, findings);
  return std::move(findings.result);
}

void StepAudit::before(const std::vector<SlotId>& slots, Stream& stream) {
  state_.move_states(slots, *states_before_, Move::kFromCache, stream);
}

void StepAudit::keep(const Audited& step, Stream& stream) {
  state_.move_states(step.slots, *first_states_, Move::kFromCache, stream);
  auto* kept = static_cast<std::byte*>(kept_rows_->data());
  for (const PagedLayer& layer : state_.layers()) {
    const size_t bytes = StateRows::row_bytes(layer, step.batch.num_tokens);
    state_.move(step.ran, layer, *rows_, step.batch.num_tokens, Move::kFromCache);
    stream.copy(kept, rows_->data(), bytes);
    kept += bytes;
  }
  const LogitShards logits(step.ran, logit_rows(step.ran.program, step.key));
  const int64_t live = logits.cols * step.batch.num_samples;
  for (int64_t shard = 0; shard < logits.shards; ++shard) {
    stream.copy(static_cast<float*>(first_logits_->data()) + shard * live,
                logits.data + shard * logits.stride, static_cast<size_t>(live) * sizeof(float));
  }
}

// NaN, so that what the second run does not write is not taken for the same.
void StepAudit::clear_rows(const Lowering& plain, int32_t tokens, Stream& stream) {
  nan_.fill(stream, rows_->data(), state_.largest_layer(tokens));
  for (const PagedLayer& layer : state_.layers()) {
    state_.move(plain, layer, *rows_, tokens, Move::kIntoCache);
  }
}

void StepAudit::add_to_counts(const Audited& step, const Lowering& plain, const int32_t* tokens,
                              int32_t change, Stream& stream) {
  const SampleOp& sample = sample_op(plain.program);
  auto* counts = static_cast<int32_t*>(plain.context.address(sample.output_count));  // [S+1, vocab]
  auto* words = static_cast<int32_t*>(words_->data());
  const auto each = [&](auto&& visit) {
    for (size_t row = 0; row < step.rows.size(); ++row) {
      if (!step.rows[row].counts || tokens[row] < 0) continue;
      visit(words + row, counts + step.rows[row].slot * sample.vocab_size + tokens[row]);
    }
  };
  each([&](int32_t* word, const int32_t* count) { stream.copy(word, count, sizeof *word); });
  stream.synchronize();
  each([&](int32_t* word, int32_t* count) {
    *word += change;
    stream.copy(count, word, sizeof *word);
  });
  stream.synchronize();
}

// The step counted its tokens when it sampled them: the second run samples without those, and what
// it counts is taken back.
void StepAudit::run_again(const Audited& step, const Lowering& plain, Stream& stream,
                          bool bitwise) {
  BatchShape batch = step.batch;
  // A prefix that was read once is read for each row, where other kernels may give other bits.
  if (!bitwise) batch.cascade = false;
  const BatchDescriptor real = real_key(batch);
  const std::vector<Op>& ops = plain.program.ops;
  clear_rows(plain, batch.num_tokens, stream);
  state_.move_states(step.slots, *states_before_, Move::kIntoCache, stream);
  add_to_counts(step, plain, step.tokens, -1, stream);
  // Drafts stay what they were, and no slot moves: neither prepare_inputs and propose_ngram nor
  // accept_drafts runs a second time.
  const bool speculates = accept_op(plain.program) != nullptr;
  const int first = speculates ? 2 : 1, sample = static_cast<int>(ops.size()) - first;
  launch_ops(plain.context, {first, sample}, real, &batch);
  OpContext own = plain.context;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i][0] != nullptr) own.addresses[i] = outputs_[i];
  }
  const ValueId last_token = sample_op(plain.program).last_token;
  if (last_token != kNoValue)
    own.addresses[static_cast<size_t>(last_token)].fill(last_token_->data());
  launch_op(own, ops[static_cast<size_t>(sample)], real, &batch);
  stream.synchronize();
  if (!speculates) add_to_counts(step, plain, tokens_, -1, stream);
  add_to_counts(step, plain, step.tokens, 1, stream);
}

void StepAudit::compare_and_restore(const Audited& step, const Lowering& plain, Stream& stream) {
  const int32_t tokens = step.batch.num_tokens, rows = step.batch.num_samples;
  auto* out = static_cast<RowDistance*>(distances_->data());
  const auto compare = [&](void* got, void* expected, DType dtype, int64_t stride, int64_t cols,
                           int32_t rows) {
    kernels::RowDistancesArgs args;
    args.got = {got, dtype, stride};
    args.expected = {expected, dtype, stride};
    args.out = out;
    args.cols = static_cast<int32_t>(cols);
    args.rows = {rows, nullptr};
    plain.context.kernels->row_distances(plain.context.stream_ref, args);
    out += rows;
  };
  const auto* kept = static_cast<const std::byte*>(kept_rows_->data());
  for (const PagedLayer& layer : state_.layers()) {
    const size_t bytes = StateRows::row_bytes(layer, tokens);
    state_.move(plain, layer, *rows_, tokens, Move::kFromCache);
    stream.copy(first_rows_->data(), kept, bytes);
    auto* first = static_cast<std::byte*>(first_rows_->data());
    auto* again = static_cast<std::byte*>(rows_->data());
    for (const PagedPart& part : layer.layout.parts) {
      const int64_t cols = part.units * part.elements;
      compare(first, again, part.dtype, cols, cols, tokens);
      first += part.token_bytes() * tokens;
      again += part.token_bytes() * tokens;
    }
    state_.move(plain, layer, *first_rows_, tokens, Move::kIntoCache);
    kept += bytes;
  }
  // What the second run left takes the place of what was before the first.
  state_.move_states(step.slots, *states_before_, Move::kFromCache, stream);
  auto* first_state = static_cast<std::byte*>(first_states_->data());
  auto* again = static_cast<std::byte*>(states_before_->data());
  state_.each_state([&](const State& state) {
    const auto cols = static_cast<int64_t>(state.slot_bytes() / size_of(state.dtype));
    compare(first_state, again, state.dtype, cols, cols, step.batch.num_reqs);
    first_state += state.slot_bytes() * static_cast<size_t>(step.batch.num_reqs);
    again += state.slot_bytes() * static_cast<size_t>(step.batch.num_reqs);
  });
  state_.move_states(step.slots, *first_states_, Move::kIntoCache, stream);
  const LogitShards logits(plain, logit_rows(plain.program, real_key(step.batch)));
  auto* first = static_cast<float*>(first_logits_->data());
  for (int64_t shard = 0; shard < logits.shards; ++shard) {
    compare(first + shard * logits.cols * rows,
            const_cast<float*>(logits.data) + shard * logits.stride, DType::kFloat32, logits.cols,
            logits.tokens_of(shard), rows);
  }
}

// Both runs have the same; a padded token belongs into the reserved block, and no other there.
void StepAudit::judge_inputs(const Audited& step, Stream& stream, Findings& findings) {
  const auto* slots = static_cast<const int64_t*>(slots_->data());
  const std::vector<StateGroup>& groups = step.ran.program.states;
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].kind != StateKind::kPaged) continue;
    stream.copy(slots_->data(), kv_slots(step.ran, static_cast<int>(group)),
                static_cast<size_t>(step.key.num_tokens) * sizeof *slots);
    stream.synchronize();
    for (int32_t token = 0; token < step.key.num_tokens; ++token) {
      const int64_t block = slots[token] / state_.block_size();
      const bool padded = token >= step.batch.num_tokens;
      if ((block == kReservedBlock) == padded) continue;
      findings.note(fmt::format("prepare_inputs: the {}token {} goes to block {}",
                                padded ? "padded " : "", token, block));
    }
  }
}

void StepAudit::judge_cache(const Audited& step, Findings& findings) const {
  const auto* distance = static_cast<const RowDistance*>(distances_->data());
  for (const PagedLayer& layer : state_.layers()) {
    for (const PagedPart& part : layer.layout.parts) {
      for (int32_t token = 0; token < step.batch.num_tokens; ++token) {
        const float worst = (distance++)->worst();
        findings.result.worst_kv = std::max(findings.result.worst_kv, worst);
        if (!findings.beyond(worst, part.dtype)) continue;
        findings.note(fmt::format("layer {}: the {} of token {} differ by {} of the largest",
                                  layer.layer, part.name, token, worst));
      }
    }
  }
  state_.each_state([&](const State& state) {
    for (int32_t row = 0; row < step.batch.num_reqs; ++row) {
      const float worst = (distance++)->worst();
      findings.result.worst_kv = std::max(findings.result.worst_kv, worst);
      if (!findings.beyond(worst, state.dtype)) continue;
      findings.note(fmt::format("the state of layer {} of row {} differs by {} of the largest",
                                state.layer, row, worst));
    }
  });
}

float StepAudit::second_logit(const LogitShards& logits, int32_t row, TokenId token,
                              Stream& stream) {
  auto* logit = static_cast<float*>(words_->data());
  stream.copy(logit, logits.data + logits.at(row, token), sizeof *logit);
  stream.synchronize();
  return *logit;
}

// The same logits give the same token. Where they differ within the bound, a greedy token may be
// one whose logit is that near to the one of the second run's, the greatest there; of a drawn one
// nothing follows.
void StepAudit::judge_rows(const Audited& step, const Lowering& plain, Stream& stream,
                           Findings& findings) {
  const LogitShards logits(plain, logit_rows(plain.program, real_key(step.batch)));
  const std::vector<PagedLayer>& layers = state_.layers();
  // Logits are float32; how far they may be apart follows from the activations.
  const DType dtype = layers.empty() ? DType::kFloat32 : layers.front().layout.parts.front().dtype;
  const int32_t num_rows = step.batch.num_samples;
  const auto* distances = static_cast<const RowDistance*>(distances_->data()) +
                          num_parts_ * static_cast<size_t>(step.batch.num_tokens) +
                          num_states_ * static_cast<size_t>(step.batch.num_reqs);
  for (int32_t row = 0; row < num_rows; ++row) {
    RowDistance distance;
    for (int64_t shard = 0; shard < logits.shards; ++shard) {
      distance = distance.with(distances[shard * num_rows + row]);
    }
    const float worst = distance.worst();
    findings.result.worst_logit = std::max(findings.result.worst_logit, worst);
    if (findings.beyond(worst, dtype)) {
      findings.note(fmt::format("the logits of row {} differ by {} of the largest", row, worst));
    }
    const Row& asked = step.rows[static_cast<size_t>(row)];
    const TokenId token = step.tokens[row], again = tokens_[row];
    if (!asked.samples || token == again) continue;
    if (worst == 0) {
      findings.note(fmt::format("sample gave row {} token {}, and {} from the same logits", row,
                                token, again));
    } else if (asked.greedy && token >= 0) {
      const float best = again < 0 ? INFINITY : second_logit(logits, row, again, stream);
      const float behind = best - second_logit(logits, row, token, stream);
      if (again >= 0 && !findings.beyond(std::abs(behind) / std::max(std::abs(best), 1e-6f), dtype))
        continue;
      findings.note(fmt::format("sample gave row {} token {}, whose logit is {} below the best",
                                row, token, behind));
    }
  }
}

}  // namespace refrain::worker
