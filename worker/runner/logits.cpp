#include "worker/runner/logits.h"

#include <algorithm>

namespace refrain::worker {

int32_t logit_rows(const Program& program, const BatchDescriptor& key) {
  const Dim& rows = program.value(prepare_op(program).logit_index).rows;
  return static_cast<int32_t>(rows.resolve(padded_sizes(program, key)));
}

int32_t max_logit_rows(const Program& program) {
  const Dim& rows = program.value(prepare_op(program).logit_index).rows;
  return static_cast<int32_t>(rows.resolve(program.max_sizes()));
}

LogitShards::LogitShards(const Lowering& lowering, int32_t padded_rows) {
  const SampleOp& sample = sample_op(lowering.program);
  const bool bound = !lowering.context.addresses.empty();
  data = bound ? static_cast<const float*>(lowering.context.address(sample.logits)) : nullptr;
  vocab = sample.vocab_size;
  shards = sample.shards;
  cols = lowering.program.value(sample.logits).cols;
  stride = cols * padded_rows;
}

int64_t LogitShards::tokens_of(int64_t shard) const {
  return std::clamp<int64_t>(vocab - shard * cols, 0, cols);
}

std::vector<float> read_logits(const Lowering& lowering, int32_t rows, int32_t padded_rows,
                               Device& device, Stream& stream) {
  const LogitShards logits(lowering, padded_rows);
  const size_t bytes = static_cast<size_t>(logits.stride * logits.shards) * sizeof(float);
  const auto pinned = device.allocate_pinned(std::max<size_t>(bytes, 1));
  stream.copy(pinned->data(), logits.data, bytes);
  stream.synchronize();
  const auto* from = static_cast<const float*>(pinned->data());
  std::vector<float> dense(static_cast<size_t>(rows * logits.vocab));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t shard = 0; shard < logits.shards; ++shard) {
      std::copy_n(from + shard * logits.stride + row * logits.cols, logits.tokens_of(shard),
                  dense.begin() + row * logits.vocab + shard * logits.cols);
    }
  }
  return dense;
}

}  // namespace refrain::worker
