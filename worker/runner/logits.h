#pragma once
// The logits of a step that has ended, out of the arena. For audits, tests and debugging.

#include <vector>

#include "worker/graph/lowering.h"

namespace refrain::worker {

// Rows of logits that a Program has at a key: one a request, or more with speculation.
int32_t logit_rows(const Program& program, const BatchDescriptor& key);
// At most.
int32_t max_logit_rows(const Program& program);

// Where a Program leaves them: each rank's part of the vocabulary is a shard, [R, cols] float32 of
// `padded_rows` rows. `data` is the device's.
struct LogitShards {
  LogitShards(const Lowering& lowering, int32_t padded_rows);
  const float* data;
  int64_t vocab, shards, cols, stride;  // stride: elements from one shard to the next

  int64_t tokens_of(int64_t shard) const;  // the shard's columns that are tokens, may be none
  int64_t at(int64_t row, int64_t token) const {
    return token / cols * stride + row * cols + token % cols;
  }
};

// [rows, vocab_size] of a batch that ran with `padded_rows` rows. Waits for the stream.
std::vector<float> read_logits(const Lowering& lowering, int32_t rows, int32_t padded_rows,
                               Device& device, Stream& stream);

}  // namespace refrain::worker
