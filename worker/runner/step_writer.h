#pragma once
// From an ipc::Step to pinned memory of one execution context: checks what the coordinator says,
// then writes the step block and the side data of new slots (bias, mask, long block tables). No
// allocation after the first step, but for a slot's first min_tokens. Device thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/slot_table.h"
#include "worker/runner/step_check.h"
#include "worker/runner/token_masks.h"

namespace refrain::worker {

class StepWriter {
 public:
  // keep_logits: RunnerOptions. Buffers, slots, table and grammars outlive it.
  StepWriter(const InputBuffers& buffers, const SlotStates& slots, SlotTable& table,
             GrammarMasks& grammars, const Program& program, int64_t max_model_len,
             bool keep_logits);
  void set_num_blocks(std::vector<int64_t> num_blocks) {
    check_.set_num_blocks(std::move(num_blocks));
  }
  void set_num_places(int32_t places) { check_.set_num_places(places); }

  // Into the pinned memory of the next turn. Scheduling mistakes throw FatalError and name the
  // field and row. Side data is copied to the slots on the stream, in front of the step.
  void write(const ipc::Step& step, Stream& stream);
  // The masks that the step written last waits for.
  std::vector<GrammarMasks::Row> grammar_rows(const ipc::Step& step) const {
    return masks_.grammar_rows(step);
  }
  // After the step's ops: keeps the checkpoints that it ends at.
  void keep_checkpoints(const ipc::Step& step, Stream& stream) const;

 private:
  void check_adapters(const ipc::Step& step) const;
  void write_rows(const ipc::Rows& rows, uint8_t* block) const;
  void write_block_updates(const ipc::Step& step, kernels::StepHeader& header,
                           Stream& stream) const;
  void copy_block_updates(const ipc::BlockUpdates& updates, size_t begin, int32_t* block_table,
                          size_t& copied, Stream& stream) const;
  void copy_checkpoints(const ipc::Step& step, SlotStates::Checkpoint direction,
                        Stream& stream) const;
  int32_t write_setups(const ipc::Step& step, Stream& stream);
  int32_t write_history(const ipc::SlotSetup& setup, size_t index, int32_t at) const;
  void write_bias(const ipc::SlotSetup& setup, size_t index, Stream& stream) const;

  const InputBuffers& buffers_;
  const InputSizes& sizes_;
  const SlotStates& slots_;
  SlotTable& table_;
  const bool keep_logits_;
  StepCheck check_;
  TokenMasks masks_;
};

}  // namespace refrain::worker
