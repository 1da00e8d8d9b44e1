#pragma once
// The logits of a step that has ended, out of the arena. For audits, tests and debugging.

#include <vector>

#include "worker/graph/lowering.h"

namespace refrain::worker {

// Where a Program leaves them: each rank's part of the vocabulary is a shard, [R, cols] float32 of
// `padded_reqs` rows. `data` is the device's.
struct LogitShards {
  LogitShards(const Lowering& lowering, int32_t padded_reqs);
  const float* data;
  int64_t vocab, shards, cols, stride;  // stride: elements from one shard to the next

  int64_t tokens_of(int64_t shard) const;  // the shard's columns that are tokens, may be none
  int64_t at(int64_t row, int64_t token) const {
    return token / cols * stride + row * cols + token % cols;
  }
};

// [rows, vocab_size] of a batch that ran with `padded_reqs` rows. Waits for the stream.
std::vector<float> read_logits(const Lowering& lowering, int32_t rows, int32_t padded_reqs,
                               Device& device, Stream& stream);

}  // namespace refrain::worker
