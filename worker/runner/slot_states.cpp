#include "worker/runner/slot_states.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "worker/runner/value_memory.h"

namespace refrain::worker {
namespace {

// What must be zero comes first; returns its size.
size_t carve(Carver& carver, const Program& program, std::vector<Addresses>& addresses) {
  size_t zeroed = 0;
  for (const bool zero : {true, false}) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (!value.is_of_slots() || value.zeroed != zero) continue;
      addresses[i].fill(carver.take(bytes_of(program, value)));
    }
    if (zero) zeroed = carver.used();
  }
  return zeroed;
}

}  // namespace

SlotStates::SlotStates(Device& device, Stream& stream, const Program& program)
    : addresses_(program.values.size()) {
  Carver size(nullptr);
  const size_t zeroed = carve(size, program, addresses_);
  memory_ = device.allocate(size.used(), MemoryTag::kInputs);
  Carver place(memory_->data());
  carve(place, program, addresses_);
  find_groups(program);
  if (pool_op(program) == nullptr) {
    const SampleOp& sample = sample_op(program);
    find(bias_token_, sample.bias_token);
    find(bias_value_, sample.bias_value);
    find(allowed_mask_, sample.allowed_mask);
  }
  const size_t slots = static_cast<size_t>(prepare_op(program).limits.max_reqs) + 1;
  allocate_checkpoints(device, slots);
  const Filler zeros(device, 0);  // until the copies have been made
  zeros.fill(stream, memory_->data(), zeroed);
  set_params(device, stream, program, slots);
}

void SlotStates::find_groups(const Program& program) {
  const PrepareInputsOp& prepare = prepare_op(program);
  size_t paged = 0;
  for (const StateGroup& group : program.states) {
    Group& of = groups_.emplace_back();
    if (group.kind == StateKind::kPaged) {
      of.paged = static_cast<int>(paged);
      find(of.block_table, prepare.block_table[paged++]);
    }
  }
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (!value.is_of_slots() || value.group < 0) continue;
    std::byte* memory = nullptr;
    find(memory, static_cast<ValueId>(i));
    const SlotLayout& layout = program.group_of(value).slot;
    groups_[static_cast<size_t>(value.group)].states.push_back(
        {memory, static_cast<size_t>(layout.bytes()), layout.versions, value.dtype, value.layer,
         nullptr});
  }
}

// Checkpoints of the slot groups' states, and the zeros that a request begins from.
void SlotStates::allocate_checkpoints(Device& device, size_t count) {
  size_t longest = 0, all = 0;
  for (const Group& group : groups_) {
    for (const State& state : group.states) {
      longest = std::max(longest, state.slot_bytes());
      all += state.bytes * count;
    }
  }
  if (longest == 0) return;
  zeros_ = device.allocate_pinned(longest);
  std::memset(zeros_->data(), 0, longest);
  checkpoints_ = device.allocate(all, MemoryTag::kKvCache);
  auto* memory = static_cast<std::byte*>(checkpoints_->data());
  for (Group& group : groups_) {
    for (State& state : group.states) {
      state.checkpoints = memory;
      memory += state.bytes * count;
    }
  }
}

void SlotStates::set_params(Device& device, Stream& stream, const Program& program,
                            size_t slots) const {
  const size_t bytes = slots * sizeof(kernels::SlotParams);
  const auto params = device.allocate_pinned(bytes);
  std::uninitialized_fill_n(static_cast<kernels::SlotParams*>(params->data()), slots,
                            kernels::SlotParams{});
  void* target = nullptr;
  find(target, prepare_op(program).params);
  stream.copy(target, params->data(), bytes);
  stream.synchronize();
}

void SlotStates::clear(SlotId slot, Stream& stream) const {
  for (const Group& group : groups_) {
    for (const State& state : group.states)
      stream.copy(state.of(slot), zeros_->data(), state.slot_bytes());
  }
}

void SlotStates::copy(Checkpoint direction, size_t group, SlotId slot, int64_t tokens,
                      BlockId block, Stream& stream) const {
  for (const State& state : groups_[group].states) {
    std::byte* of_slot = state.after(slot, tokens);
    std::byte* kept = state.checkpoints + static_cast<size_t>(block) * state.bytes;
    const bool restores = direction == Checkpoint::kRestore;
    stream.copy(restores ? of_slot : kept, restores ? kept : of_slot, state.bytes);
  }
}

}  // namespace refrain::worker
