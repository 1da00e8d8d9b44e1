#include "worker/runner/step_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/check.h"
#include "worker/graph/interpreter.h"
#include "worker/runner/logits.h"

namespace refrain::worker {
namespace {

// Of the largest magnitude beside it. Two runs of a deep network in bfloat16 differ by a few per
// cent of the typical magnitude; a wrong row, key or length by more than the whole of it.
constexpr float kBound = 0.15f, kFloat32Bound = 0.005f;

size_t row_bytes(const KvLayer& layer) {
  return static_cast<size_t>(2 * layer.kv_heads * layer.head_dim) * size_of(layer.dtype);
}

float value_at(const std::vector<std::byte>& data, DType dtype, size_t index) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, data.data() + index * sizeof value, sizeof value);
    return value;
  }
  BFloat16 value;
  std::memcpy(&value, data.data() + index * sizeof value, sizeof value);
  return to_float(value);
}

// The worst difference of [begin, end), over the largest magnitude of the expected values there.
// Infinity where one is not a number and the other is.
template <class Got, class Expected>
float worst_difference(size_t begin, size_t end, const Got& got, const Expected& expected) {
  float largest = 0, distance = 0;
  for (size_t i = begin; i < end; ++i) {
    const float a = got(i), b = expected(i);
    if (std::isfinite(b)) largest = std::max(largest, std::abs(b));
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const float apart = std::abs(a - b);
    distance = std::isfinite(apart) ? std::max(distance, apart) : INFINITY;
  }
  if (distance == 0) return 0;
  return largest > 0 ? distance / largest : INFINITY;
}

template <class T>
std::vector<T> read_array(Device& device, Stream& stream, const T* from, int32_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  const auto pinned = device.allocate_pinned(bytes);
  stream.copy(pinned->data(), from, bytes);
  stream.synchronize();
  return {static_cast<const T*>(pinned->data()), static_cast<const T*>(pinned->data()) + count};
}

const SampleOp& sample_op(const Program& program) { return std::get<SampleOp>(program.ops.back()); }

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

StepAudit::StepAudit(Device& device, const KvCache& cache, const InputSizes& sizes)
    : device_(device), cache_(cache), block_size_(sizes.block_size) {
  size_t bytes = 1;
  for (const KvLayer& layer : cache.layers()) {
    bytes = std::max(bytes, row_bytes(layer) * static_cast<size_t>(sizes.max_tokens));
  }
  rows_ = device.allocate(bytes, MemoryTag::kOther);
  pinned_rows_ = device.allocate_pinned(bytes);
  last_token_ = device.allocate((static_cast<size_t>(sizes.max_reqs) + 1) * sizeof(int32_t),
                                MemoryTag::kOther);
  sampled_ = allocate_outputs(device, sizes, outputs_);
  word_ = device.allocate_pinned(sizeof(int32_t));
}

void StepAudit::copy_rows(const OpContext& context, const KvLayer& layer, int32_t tokens,
                          bool restore) {
  kernels::KvRowsArgs args;
  args.cache = static_cast<std::byte*>(cache_.addresses()[static_cast<size_t>(layer.layer)]);
  args.dense = static_cast<std::byte*>(rows_->data());
  args.kv_slots = context.buffers.inputs.kv_slots;
  args.tokens = tokens;
  args.kv_heads = static_cast<int32_t>(layer.kv_heads);
  args.head_bytes =
      static_cast<int32_t>(layer.head_dim * static_cast<int64_t>(size_of(layer.dtype)));
  args.block_size = block_size_;
  args.restore = restore;
  context.kernels->kv_rows(context.stream_ref, args);
}

StepAudit::Written StepAudit::read(const Lowering& lowering, int32_t padded_reqs,
                                   const BatchShape& batch, Stream& stream) {
  Written written;
  written.logits = read_logits(lowering, batch.num_reqs, padded_reqs, device_, stream);
  for (const KvLayer& layer : cache_.layers()) {
    const size_t bytes = row_bytes(layer) * static_cast<size_t>(batch.num_tokens);
    copy_rows(lowering.context, layer, batch.num_tokens, false);
    stream.copy(pinned_rows_->data(), rows_->data(), bytes);
    stream.synchronize();
    const auto* data = static_cast<const std::byte*>(pinned_rows_->data());
    written.layers.emplace_back(data, data + bytes);
  }
  return written;
}

void StepAudit::restore(const Lowering& lowering, const Written& written, int32_t tokens,
                        Stream& stream) {
  for (size_t i = 0; i < written.layers.size(); ++i) {
    std::memcpy(pinned_rows_->data(), written.layers[i].data(), written.layers[i].size());
    stream.copy(rows_->data(), pinned_rows_->data(), written.layers[i].size());
    copy_rows(lowering.context, cache_.layers()[i], tokens, true);
    stream.synchronize();
  }
}

// NaN, so that what the second run does not write is not taken for the same.
void StepAudit::clear_rows(const Lowering& lowering, int32_t tokens, Stream& stream) {
  std::memset(pinned_rows_->data(), 0xff, pinned_rows_->bytes());
  stream.copy(rows_->data(), pinned_rows_->data(), rows_->bytes());
  for (const KvLayer& layer : cache_.layers()) copy_rows(lowering.context, layer, tokens, true);
}

void StepAudit::add_to_count(const Lowering& plain, SlotId slot, TokenId token, int32_t change,
                             Stream& stream) {
  const kernels::SlotState& slots = plain.context.buffers.slots;
  if (token < 0 || slots.output_count == nullptr) return;
  int32_t* count = slots.output_count + int64_t{slot} * slots.vocab_size + token;
  auto* word = static_cast<int32_t*>(word_->data());
  stream.copy(word, count, sizeof *word);
  stream.synchronize();
  *word += change;
  stream.copy(count, word, sizeof *word);
  stream.synchronize();
}

// The step counted its tokens when it sampled them: the second run samples without those, and what
// it counts is taken back.
void StepAudit::run_again(const Audited& step, const Lowering& plain, Stream& stream) {
  const auto count = [&](const int32_t* tokens, int32_t change) {
    for (size_t row = 0; row < step.rows.size(); ++row) {
      if (!step.rows[row].counts) continue;
      add_to_count(plain, step.rows[row].slot, tokens[row], change, stream);
    }
  };
  const BatchShape& batch = step.batch;
  const BatchDescriptor real{batch.num_tokens, batch.num_reqs, batch.uniform, batch.has_lora};
  const std::vector<Op>& ops = plain.program.ops;
  clear_rows(plain, batch.num_tokens, stream);
  count(step.tokens, -1);
  launch_ops(plain.context, {1, static_cast<int>(ops.size()) - 1}, real, &batch);
  OpContext own = plain.context;
  std::fill(std::begin(own.buffers.outputs), std::end(own.buffers.outputs), outputs_);
  own.buffers.slots.last_token = static_cast<int32_t*>(last_token_->data());
  launch_op(own, ops.back(), real, &batch);
  stream.synchronize();
  count(outputs_.tokens, -1);
  count(step.tokens, 1);
}

ipc::AuditResult StepAudit::run(const Audited& step, const Lowering& plain, Stream& stream,
                                bool bitwise) {
  const std::vector<Op>& ops = plain.program.ops;
  REFRAIN_CHECK(std::holds_alternative<PrepareInputsOp>(ops.front()) &&
                    std::holds_alternative<SampleOp>(ops.back()),
                "program {} does not begin with prepare_inputs and end with sample",
                plain.program.name);
  const BatchShape& batch = step.batch;
  Findings findings{fmt::format("program {}, key {} {} ({} requests{})", plain.program.name,
                                ipc::to_string(step.mode), step.key.num_tokens, step.key.num_reqs,
                                step.key.uniform ? ", uniform" : ""),
                    bitwise,
                    {}};
  findings.result.audited = true;
  compare_inputs(step, stream, findings);
  const Written got = read(step.ran, step.key.num_reqs, batch, stream);
  run_again(step, plain, stream);
  const Written expected = read(plain, batch.num_reqs, batch, stream);
  restore(plain, got, batch.num_tokens, stream);
  compare_cache(step, got, expected, findings);
  compare_rows(step, plain, got, expected, findings);
  return std::move(findings.result);
}

// Both runs have the same; a padded token belongs into the reserved block, and no other there.
void StepAudit::compare_inputs(const Audited& step, Stream& stream, Findings& findings) {
  const std::vector<int64_t> slots =
      read_array(device_, stream, step.ran.context.buffers.inputs.kv_slots, step.key.num_tokens);
  for (int32_t token = 0; token < step.key.num_tokens; ++token) {
    const int64_t block = slots[static_cast<size_t>(token)] / block_size_;
    const bool padded = token >= step.batch.num_tokens;
    if ((block == kReservedBlock) == padded) continue;
    findings.note(fmt::format("prepare_inputs: the {}token {} goes to block {}",
                              padded ? "padded " : "", token, block));
  }
}

void StepAudit::compare_cache(const Audited& step, const Written& got, const Written& expected,
                              Findings& findings) {
  for (size_t i = 0; i < got.layers.size(); ++i) {
    const KvLayer& layer = cache_.layers()[i];
    const auto cols = static_cast<size_t>(2 * layer.kv_heads * layer.head_dim);
    const auto value_in = [&](const Written& written) {
      return [&, data = &written.layers[i]](size_t at) { return value_at(*data, layer.dtype, at); };
    };
    for (size_t token = 0; token < static_cast<size_t>(step.batch.num_tokens); ++token) {
      for (const bool values : {false, true}) {
        const size_t begin = token * cols + (values ? cols / 2 : 0);
        const float worst =
            worst_difference(begin, begin + cols / 2, value_in(got), value_in(expected));
        findings.result.worst_kv = std::max(findings.result.worst_kv, worst);
        if (!findings.beyond(worst, layer.dtype)) continue;
        findings.note(
            fmt::format("rope_kv_write of layer {}: the {} of token {} differ by {} of the largest",
                        layer.layer, values ? "values" : "keys", token, worst));
      }
    }
  }
}

// The same logits give the same token. Where they differ within the bound, a greedy token may be
// one whose logit is that near to the greatest; of a drawn one nothing follows.
void StepAudit::compare_rows(const Audited& step, const Lowering& plain, const Written& got,
                             const Written& expected, Findings& findings) {
  const SampleOp& sample = sample_op(plain.program);
  // Logits are float32; how far they may be apart follows from the activations.
  const DType dtype = cache_.layers().empty() ? plain.program.value(sample.logits).dtype
                                              : cache_.layers().front().dtype;
  const auto vocab = static_cast<size_t>(sample.vocab_size);
  for (size_t row = 0; row < step.rows.size(); ++row) {
    const float worst = worst_difference(
        row * vocab, (row + 1) * vocab, [&](size_t at) { return got.logits[at]; },
        [&](size_t at) { return expected.logits[at]; });
    findings.result.worst_logit = std::max(findings.result.worst_logit, worst);
    if (findings.beyond(worst, dtype)) {
      findings.note(fmt::format("the logits of row {} differ by {} of the largest", row, worst));
    }
    const TokenId token = step.tokens[row], again = outputs_.tokens[row];
    if (!step.rows[row].samples || token == again) continue;
    if (worst == 0) {
      findings.note(fmt::format("sample gave row {} token {}, and {} from the same logits", row,
                                token, again));
    } else if (step.rows[row].greedy && token >= 0) {
      const float* logits = expected.logits.data() + row * vocab;
      const float best = *std::max_element(logits, logits + vocab);
      const float behind = best - logits[token];
      if (!findings.beyond(behind / std::max(std::abs(best), 1e-6f), dtype)) continue;
      findings.note(fmt::format("sample gave row {} token {}, whose logit is {} below the best",
                                row, token, behind));
    }
  }
}

}  // namespace refrain::worker
