#pragma once
// From an ipc::Step to pinned memory: checks what the coordinator says, then writes the step block
// and the side data of new slots (bias, mask, long block tables). No allocation after the first
// step, but for a slot's first min_tokens. Device thread.

#include <cstdint>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/runner/input_buffers.h"

namespace refrain::worker {

class StepWriter {
 public:
  // keep_logits: RunnerOptions.
  StepWriter(const InputBuffers& buffers, int64_t max_model_len, bool keep_logits);
  void set_num_blocks(int64_t num_blocks) { num_blocks_ = num_blocks; }

  // Into the pinned memory of the next turn. Scheduling mistakes throw FatalError and name the
  // field and row. Side data is copied to the slots on the stream, in front of the step.
  void write(const ipc::Step& step, Stream& stream);
  // Whether a slot's token is that of the greatest logit, and nothing else was asked.
  bool plainly_greedy(SlotId slot) const { return plainly_greedy_[static_cast<size_t>(slot)]; }
  // Whether penalties are on, so that the slot counts the tokens it gave.
  bool uses_history(SlotId slot) const { return uses_history_[static_cast<size_t>(slot)]; }
  // Log-probabilities a slot asked for; -1: none.
  int32_t num_logprobs(SlotId slot) const { return num_logprobs_[static_cast<size_t>(slot)]; }

 private:
  void check_rows(const ipc::Step& step);
  void check_updates(const ipc::Step& step) const;
  void check_mask(const ipc::Step& step, const ipc::SlotSetup& setup) const;
  void write_rows(const ipc::Step& step, uint8_t* block) const;
  int32_t write_block_updates(const ipc::Step& step, Stream& stream) const;
  void write_setups(const ipc::Step& step, Stream& stream);
  void write_side_data(const ipc::SlotSetup& setup, size_t index, Stream& stream);
  void write_mask(const ipc::SlotSetup& setup, size_t index, Stream& stream);
  void lift_masks(const ipc::Step& step, Stream& stream);

  const InputBuffers& buffers_;
  const InputSizes& sizes_;
  int64_t max_model_len_;
  bool keep_logits_;
  int64_t num_blocks_ = 0;
  std::vector<int32_t> num_logprobs_;  // [S]
  std::vector<bool> plainly_greedy_;   // [S]
  std::vector<bool> uses_history_;     // [S]
  std::vector<uint64_t> row_seen_;     // [S] count of writes, to find a slot named twice
  std::vector<int64_t> row_end_;       // [S] position of the token that such a row samples
  uint64_t writes_ = 0;

  // End tokens are masked in a slot until its row samples position `until`.
  struct EndMask {
    int64_t until = 0;           // 0: they are not
    std::vector<uint32_t> mask;  // [mask_words], what is allowed from then on
  };
  std::vector<EndMask> end_masks_;  // [S]
};

}  // namespace refrain::worker
