#pragma once
// The logits of a step that has ended, out of the arena. For audits, tests and debugging.

#include <vector>

#include "worker/graph/lowering.h"

namespace refrain::worker {

// [rows, vocab_size] of a batch that ran with `padded_reqs` rows. Waits for the stream.
std::vector<float> read_logits(const Lowering& lowering, int32_t rows, int32_t padded_reqs,
                               Device& device, Stream& stream);

}  // namespace refrain::worker
