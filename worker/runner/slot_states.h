#pragma once
// Device memory of what slots keep between steps: parameters, block tables, counts, the states of
// slot groups and their checkpoints. A worker has it once: all its execution contexts read and
// write it, each for the slots of its own steps (CG-38). Addresses never change. Device thread; as
// long as the runner.

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/ids.h"
#include "worker/device/device.h"
#include "worker/graph/op_context.h"

namespace refrain::worker {

class SlotStates {
 public:
  // The values of `program` that are of the slots, zeroed or with the parameters of a slot that
  // nobody has. Throws OutOfMemory.
  SlotStates(Device& device, Stream& stream, const Program& program);

  // What a state group has: a block table, or a state a layer.
  struct State {
    std::byte* memory;  // [S+1, versions] of `bytes`
    size_t bytes;
    int64_t versions;  // SlotLayout
    DType dtype;
    int layer;
    std::byte* checkpoints;  // of `bytes` each, by block

    size_t slot_bytes() const { return static_cast<size_t>(versions) * bytes; }
    std::byte* of(SlotId slot) const { return memory + static_cast<size_t>(slot) * slot_bytes(); }
    // What the slot keeps after so many tokens.
    std::byte* after(SlotId slot, int64_t tokens) const {
      return of(slot) + static_cast<size_t>((tokens + versions - 1) % versions) * bytes;
    }
  };
  struct Group {
    int paged = -1;                  // among the groups with blocks
    int32_t* block_table = nullptr;  // [S+1, max_blocks]
    std::vector<State> states;
  };

  // By ValueId; null for what is not here.
  const std::vector<Addresses>& addresses() const { return addresses_; }
  const std::vector<Group>& groups() const { return groups_; }
  // Null where the Program pools.
  int32_t* bias_token() const { return bias_token_; }       // [S+1, kMaxLogitBias]
  float* bias_value() const { return bias_value_; }         // [S+1, kMaxLogitBias]
  uint32_t* allowed_mask() const { return allowed_mask_; }  // [S+1, mask_words]

  // In front of the step with which a request enters the slot: its states are zero.
  void clear(SlotId slot, Stream& stream) const;
  enum class Checkpoint { kKeep, kRestore };
  // The group's states of a slot after so many tokens, to or from the checkpoint at `block`.
  void copy(Checkpoint direction, size_t group, SlotId slot, int64_t tokens, BlockId block,
            Stream& stream) const;

 private:
  template <class T>
  void find(T*& target, ValueId id) const {
    target = static_cast<T*>(addresses_[static_cast<size_t>(id)][0]);
  }
  void find_groups(const Program& program);
  void allocate_checkpoints(Device& device, size_t count);
  void set_params(Device& device, Stream& stream, const Program& program, size_t slots) const;

  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Buffer> zeros_, checkpoints_;  // null: no slot states of groups
  std::vector<Addresses> addresses_;
  std::vector<Group> groups_;
  int32_t* bias_token_ = nullptr;
  float* bias_value_ = nullptr;
  uint32_t* allowed_mask_ = nullptr;
};

}  // namespace refrain::worker
