#pragma once
// What a slot may sample: allowed tokens, no end tokens before min_tokens, and what its grammar
// takes next. Writes the masks of one execution context's steps; what the slots have is shared by
// all. Device thread.

#include <cstdint>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/runner/grammar_masks.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/slot_table.h"
#include "worker/runner/step_check.h"

namespace refrain::worker {

class TokenMasks {
 public:
  // All outlive it.
  TokenMasks(const InputBuffers& buffers, const SlotStates& slots, SlotTable& table,
             GrammarMasks& grammars, const StepCheck& rows)
      : buffers_(buffers), slots_(slots), table_(table), grammars_(grammars), rows_(rows) {}

  // A request enters a slot: the step's setup number `index`. Copies are made on the stream, in
  // front of the step.
  void set_up(const ipc::SlotSetup& setup, size_t index, Stream& stream);
  // Of rows that sample beyond their min_tokens in this step.
  void lift(const ipc::Step& step, Stream& stream);
  // Those of grammars that the step waits for.
  std::vector<GrammarMasks::Row> grammar_rows(const ipc::Step& step) const;

 private:
  void write(const ipc::SlotSetup& setup, size_t index, Stream& stream);
  // The pinned mask number `index` of the next turn into the slot.
  void copy(SlotId slot, const uint32_t* mask, Stream& stream) const;
  uint32_t* pinned(size_t index) const {
    return buffers_.next().allowed_mask + index * buffers_.sizes().mask_words();
  }

  const InputBuffers& buffers_;
  const SlotStates& slots_;
  SlotTable& table_;
  GrammarMasks& grammars_;
  const StepCheck& rows_;
};

}  // namespace refrain::worker
