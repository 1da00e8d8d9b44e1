#pragma once
// From an ipc::Step to pinned memory: checks what the coordinator says, then writes the step block
// and the side data of new slots (bias, mask, long block tables). No allocation after the first
// step, but for a slot's first min_tokens. Device thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/runner/grammar_masks.h"
#include "worker/runner/input_buffers.h"

namespace refrain::worker {

class StepWriter {
 public:
  // keep_logits: RunnerOptions. `grammars` outlives it.
  StepWriter(const InputBuffers& buffers, int64_t max_model_len, bool keep_logits,
             GrammarMasks& grammars);
  // By state group.
  void set_num_blocks(std::vector<int64_t> num_blocks) { num_blocks_ = std::move(num_blocks); }

  // Into the pinned memory of the next turn. Scheduling mistakes throw FatalError and name the
  // field and row. Side data is copied to the slots on the stream, in front of the step.
  void write(const ipc::Step& step, Stream& stream);
  // The masks that the step written last waits for.
  std::vector<GrammarMasks::Row> grammar_rows(const ipc::Step& step) const;
  // After the step's ops: keeps the checkpoints that it ends at.
  void keep_checkpoints(const ipc::Step& step, Stream& stream) const;
  // Whether a slot's token is that of the greatest logit, and nothing else was asked.
  bool plainly_greedy(SlotId slot) const { return plainly_greedy_[static_cast<size_t>(slot)]; }
  // Whether penalties are on, so that the slot counts the tokens it gave.
  bool uses_history(SlotId slot) const { return uses_history_[static_cast<size_t>(slot)]; }
  // Of LoRA adapters; none before.
  void set_num_places(int32_t places) { num_places_ = places; }
  // Log-probabilities a slot asked for; -1: none.
  int32_t num_logprobs(SlotId slot) const { return num_logprobs_[static_cast<size_t>(slot)]; }

 private:
  void check_rows(const ipc::Step& step);
  void check_updates(const ipc::Step& step) const;
  void check_adapters(const ipc::Step& step) const;
  void check_verified(const ipc::Step& step, size_t row, size_t first_token) const;
  void check_updates(StepId step, const ipc::BlockUpdates& blocks, size_t group) const;
  void check_mask(const ipc::Step& step, const ipc::SlotSetup& setup) const;
  void write_rows(const ipc::Rows& rows, uint8_t* block) const;
  void write_block_updates(const ipc::Step& step, kernels::StepHeader& header,
                           Stream& stream) const;
  void copy_block_updates(const ipc::BlockUpdates& updates, size_t begin, int32_t* block_table,
                          size_t& copied, Stream& stream) const;
  void clear_states(SlotId slot, Stream& stream) const;
  enum class Border { kBegins, kEnds };
  void copy_checkpoints(const ipc::Step& step, Border border, Stream& stream) const;
  int32_t write_setups(const ipc::Step& step, Stream& stream);
  int32_t write_history(const ipc::SlotSetup& setup, size_t index, int32_t at) const;
  void write_side_data(const ipc::SlotSetup& setup, size_t index, Stream& stream);
  static bool has_mask(const ipc::SlotSetup& setup);
  void write_mask(const ipc::SlotSetup& setup, size_t index, Stream& stream);
  void lift_masks(const ipc::Step& step, Stream& stream);

  const InputBuffers& buffers_;
  const InputSizes& sizes_;
  int64_t max_model_len_;
  bool keep_logits_;
  std::vector<int64_t> num_blocks_;
  std::vector<int32_t> num_logprobs_;  // [S]
  std::vector<bool> plainly_greedy_;   // [S]
  std::vector<bool> uses_history_;     // [S]
  std::vector<int32_t> adapter_;       // [S] place; -1: none
  std::vector<uint64_t> row_seen_;     // [S] count of writes, to find a slot named twice
  std::vector<int64_t> row_begin_;     // [S] position of the first token of such a row
  std::vector<int64_t> row_end_;       // [S] position of the token that such a row samples
  uint64_t writes_ = 0;
  int32_t num_places_ = 0;

  // End tokens are masked in a slot until its row samples position `until`.
  struct EndMask {
    int64_t until = 0;           // 0: they are not
    std::vector<uint32_t> mask;  // [mask_words], what is allowed from then on
  };
  std::vector<EndMask> end_masks_;  // [S]

  GrammarMasks& grammars_;
  // What a slot's tokens may be besides what its grammar says; empty: all.
  std::vector<std::vector<uint32_t>> grammar_bounds_;  // [S]
};

}  // namespace refrain::worker
