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
struct Difference {
  float worst = 0;
  template <class Got, class Expected>
  void compare(size_t begin, size_t end, const Got& got, const Expected& expected) {
    float largest = 0, distance = 0;
    for (size_t i = begin; i < end; ++i) {
      const float a = got(i), b = expected(i);
      if (a == b || (std::isnan(a) && std::isnan(b))) {
        if (std::isfinite(b)) largest = std::max(largest, std::abs(b));
        continue;
      }
      const float apart = std::abs(a - b);
      distance = std::isfinite(apart) ? std::max(distance, apart) : INFINITY;
      if (std::isfinite(b)) largest = std::max(largest, std::abs(b));
    }
    if (distance > 0) worst = std::max(worst, largest > 0 ? distance / largest : INFINITY);
  }
};

}  // namespace

StepAudit::StepAudit(Device& device, const KvCache& cache, int32_t block_size, int32_t max_tokens)
    : device_(device), cache_(cache), block_size_(block_size) {
  size_t bytes = 1;
  for (const KvLayer& layer : cache.layers()) {
    bytes = std::max(bytes, row_bytes(layer) * static_cast<size_t>(max_tokens));
  }
  rows_ = device.allocate(bytes, MemoryTag::kOther);
  pinned_rows_ = device.allocate_pinned(bytes);
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

ipc::AuditResult StepAudit::run(const Audited& step, const Lowering& plain, Stream& stream,
                                bool bitwise) {
  const std::vector<Op>& ops = plain.program.ops;
  REFRAIN_CHECK(std::holds_alternative<PrepareInputsOp>(ops.front()) &&
                    std::holds_alternative<SampleOp>(ops.back()),
                "program {} does not begin with prepare_inputs and end with sample",
                plain.program.name);
  const BatchShape& batch = step.batch;
  const Written got = read(step.ran, step.padded_reqs, batch, stream);
  launch_ops(plain.context, {1, static_cast<int>(ops.size()) - 1},
             {batch.num_tokens, batch.num_reqs, batch.uniform, batch.has_lora}, &batch);
  const Written expected = read(plain, batch.num_reqs, batch, stream);
  restore(plain, got, batch.num_tokens, stream);

  ipc::AuditResult result;
  result.audited = true;
  const auto differs = [&](float worst, DType dtype) {
    return worst > (bitwise ? 0.0f : dtype == DType::kFloat32 ? kFloat32Bound : kBound);
  };
  const auto note = [&](const std::string& what) {
    ++result.differences;
    if (result.first.empty()) {
      result.first = fmt::format("program {}, key {}: {}", plain.program.name, step.key, what);
    }
  };
  for (size_t i = 0; i < got.layers.size(); ++i) {
    const KvLayer& layer = cache_.layers()[i];
    const auto cols = static_cast<size_t>(2 * layer.kv_heads * layer.head_dim);
    for (size_t token = 0; token < static_cast<size_t>(batch.num_tokens); ++token) {
      for (const bool values : {false, true}) {
        Difference difference;
        const size_t begin = token * cols + (values ? cols / 2 : 0);
        difference.compare(
            begin, begin + cols / 2,
            [&](size_t at) { return value_at(got.layers[i], layer.dtype, at); },
            [&](size_t at) { return value_at(expected.layers[i], layer.dtype, at); });
        result.worst_kv = std::max(result.worst_kv, difference.worst);
        if (differs(difference.worst, layer.dtype)) {
          note(
              fmt::format("rope_kv_write of layer {}: the {} of token {} differ by {} of the "
                          "largest",
                          layer.layer, values ? "values" : "keys", token, difference.worst));
        }
      }
    }
  }
  const DType dtype = plain.program.value(std::get<SampleOp>(ops.back()).logits).dtype;
  const DType activations = cache_.layers().empty() ? dtype : cache_.layers().front().dtype;
  const auto vocab = static_cast<size_t>(std::get<SampleOp>(ops.back()).vocab_size);
  for (size_t row = 0; row < static_cast<size_t>(batch.num_reqs); ++row) {
    Difference difference;
    difference.compare(
        row * vocab, (row + 1) * vocab, [&](size_t at) { return got.logits[at]; },
        [&](size_t at) { return expected.logits[at]; });
    result.worst_logit = std::max(result.worst_logit, difference.worst);
    if (differs(difference.worst, activations)) {
      note(fmt::format("the logits of row {} differ by {} of the largest", row, difference.worst));
    }
    if (!step.greedy[row] || step.tokens[row] < 0) continue;
    const float* logits = expected.logits.data() + row * vocab;
    const float best = *std::max_element(logits, logits + vocab);
    const float behind = best - logits[step.tokens[row]];
    if (behind > 0 && (bitwise || differs(behind / std::max(std::abs(best), 1e-6f), activations))) {
      note(fmt::format("sample gave row {} token {}, whose logit is {} below the best", row,
                       step.tokens[row], behind));
    }
  }
  return result;
}

}  // namespace refrain::worker
