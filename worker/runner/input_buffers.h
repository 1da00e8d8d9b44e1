#pragma once
// Memory of a step's inputs and outputs in one execution context: the batch's inputs on the device;
// step blocks and sampled outputs in pinned memory, which kernels read and write, so that no copy
// stands between two steps. All of a Program's values that have no place in the arena and are
// neither weight, cache nor of the slots, at addresses that never change. Device thread; as long as
// the runner.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/device/device.h"
#include "worker/graph/op_context.h"
#include "worker/runner/slot_states.h"

namespace refrain::worker {

struct InputSizes {
  int32_t max_tokens = 0;  // T
  int32_t max_reqs = 0;    // R, and S slots
  int32_t max_blocks = 0;  // of one request and state group
  int32_t num_paged = 0;   // state groups with blocks
  int32_t block_size = 16;
  int32_t vocab_size = 0;
  int32_t num_drafts = 0;    // of a row; 0: no speculation
  int32_t history_cols = 0;  // tokens of a request that are kept for it
  size_t mask_words() const { return (static_cast<size_t>(vocab_size) + 31) / 32; }
};

class InputBuffers {
 public:
  // Throws OutOfMemory. Values that are zeroed are set on the stream.
  InputBuffers(Device& device, Stream& stream, const Program& program, int32_t block_size,
               const SlotStates& slots);

  // By ValueId, those of the slots among them; null for what is not here.
  const std::vector<Addresses>& addresses() const { return addresses_; }
  const InputSizes& sizes() const { return sizes_; }
  const kernels::StepLayout& layout() const { return layout_; }
  // Pinned memory of a turn (step_state.h). With two steps in flight at most, that of the next one
  // is free: the turn that had it before has been waited for.
  struct Pinned {
    uint8_t* block = nullptr;          // StepLayout; prepare_inputs reads it
    int32_t* block_table = nullptr;    // [R, max_blocks] a group: updates without room in the block
    int32_t* bias_token = nullptr;     // [R, kMaxLogitBias]
    float* bias_value = nullptr;       // [R, kMaxLogitBias]
    uint32_t* allowed_mask = nullptr;  // [R, mask_words]
    uint32_t* grammar_mask = nullptr;  // [N, mask_words], and
    uint32_t* grammar_ready = nullptr;         // [N]: kernels::GrammarMaskInputs
    int32_t* grammar_drafts = nullptr;         // [R, num_drafts], and
    uint32_t* grammar_drafts_ready = nullptr;  // [R]: kernels::GrammarDraftInputs
    kernels::SampleOutputs outputs;            // sample writes them
    kernels::AcceptOutputs accepted;  // accept_drafts writes them; null without speculation
    kernels::PoolOutputs pooled;      // pool writes them; then there are no others
  };
  const Pinned& next() const { return pinned_[(turn_ + 1) % kernels::kTurns]; }
  const kernels::SampleOutputs& outputs(uint32_t turn) const {
    return pinned_[turn % kernels::kTurns].outputs;
  }
  const kernels::AcceptOutputs& accepted(uint32_t turn) const {
    return pinned_[turn % kernels::kTurns].accepted;
  }
  // Null pointers where the Program samples.
  const kernels::PoolOutputs& pooled(uint32_t turn) const {
    return pinned_[turn % kernels::kTurns].pooled;
  }
  // For each run of the Program, when the block of next() is written and before the launches. The
  // device counts its runs too; the number, returned here, comes back with the outputs.
  uint32_t begin_turn();

 private:
  template <class T>
  void find(T*& target, ValueId id, size_t turn = 0) const {
    target = static_cast<T*>(addresses_[static_cast<size_t>(id)][turn]);
  }
  void find_outputs(const Program& program);

  InputSizes sizes_;
  kernels::StepLayout layout_;
  std::unique_ptr<Buffer> device_memory_;
  std::array<std::unique_ptr<Buffer>, kernels::kTurns> pinned_memory_;
  std::vector<Addresses> addresses_;
  std::array<Pinned, kernels::kTurns> pinned_;
  uint32_t turn_ = 0;
};

// Pinned outputs of a run that is none of the two turns, by ValueId.
std::unique_ptr<Buffer> allocate_outputs(Device& device, const Program& program,
                                         std::vector<Addresses>& addresses);

}  // namespace refrain::worker
