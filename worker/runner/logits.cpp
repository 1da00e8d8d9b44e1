#include "worker/runner/logits.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain::worker {

std::vector<float> read_logits(const Lowering& lowering, int32_t rows, int32_t padded_reqs,
                               Device& device, Stream& stream) {
  const auto* sample = std::get_if<SampleOp>(&lowering.program.ops.back());
  REFRAIN_CHECK(sample != nullptr, "program {} does not end in sample", lowering.program.name);
  const int64_t cols = lowering.program.value(sample->logits).cols, vocab = sample->vocab_size;
  const int64_t shard = cols * padded_reqs;
  const size_t bytes = static_cast<size_t>(shard * sample->shards) * sizeof(float);
  const auto pinned = device.allocate_pinned(std::max<size_t>(bytes, 1));
  stream.copy(pinned->data(), lowering.context.addresses[static_cast<size_t>(sample->logits)],
              bytes);
  stream.synchronize();
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < sample->shards && i * cols < vocab; ++i) {
      const float* from = static_cast<const float*>(pinned->data()) + i * shard + row * cols;
      std::copy_n(from, std::min(cols, vocab - i * cols), logits.begin() + row * vocab + i * cols);
    }
  }
  return logits;
}

}  // namespace refrain::worker
