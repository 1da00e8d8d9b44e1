#pragma once
// What a scheduler plans by: the limits of steps and requests, and what the model and its groups
// need. A plain record.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/protocol/limits.h"
#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"

namespace refrain {

struct SchedulerOptions {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  int32_t block_size = 16;
  std::vector<ipc::StateGroup> groups;  // of the model, with the blocks that all ranks have
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  // A prompt of which more tokens are to be computed is long: short ones run beside it. 0: more
  // than one step may have.
  int32_t long_prefill_token_threshold = 0;
  int32_t split_prefill = 1;  // parts of a prompt's run beside decodes (CG-39); 1: it is not cut
  int32_t split_prefill_tokens = 256;  // that a row must have to be cut
  int32_t row_tile = 1;      // a step's tokens beyond multiples of it cost as much as so many
  double watermark = 0.01;   // share of the blocks that admission leaves free for running requests
  int32_t num_drafts = 0;    // that a row verifies at most; 0: no speculation
  bool draft_model = false;  // makes them: a run of its own, with room for them in its blocks
  bool draft_head = false;   // of these: keeps a token beside the state of the one before it
  int32_t max_loras = 0;     // LoRA adapters of a step: places of the workers
  std::vector<TokenId> eos_token_ids;
  int64_t pooled_cols = 0;  // numbers of the vector that a prompt gives; 0: the model generates
  int32_t replicas = 1;     // groups that step together, this one included (CG-17)
  double audit_rate = 0;    // share of the steps that are audited (CG-41)
  size_t max_step_bytes = ipc::kMaxStepBytes;  // of a step's payload
  // Between groups: ranks of this one, and how long a transfer may be without progress. A lease
  // holds for twice that without being renewed.
  int32_t num_ranks = 1;
  Duration transfer_timeout = std::chrono::seconds(10);
  bool publish_layers = false;  // its blocks can be read while its steps write them

  // Tokens behind the one that a row samples that a draft model leaves in its blocks.
  int32_t draft_reach() const { return draft_model ? num_drafts : 0; }
  // Of a step's bytes what one request's setup, or its cached blocks, may take: all can be sent.
  size_t largest_part() const { return max_step_bytes / 4; }
};

}  // namespace refrain
