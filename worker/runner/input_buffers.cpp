#include "worker/runner/input_buffers.h"

#include <algorithm>
#include <cstring>

namespace refrain::worker {
namespace {

using kernels::kMaxLogitBias;

constexpr size_t kAlignment = 256;

// Hands out aligned parts; run once with a null base to learn the size, then to place.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  void* take(size_t bytes) {
    void* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ = (used_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }
  template <class T>
  void take(T*& target, size_t count) {
    target = static_cast<T*>(take(count * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

size_t bytes_of(const Program& program, const Value& value) {
  return static_cast<size_t>(value.rows.resolve(program.max_sizes()) * value.cols) *
         size_of(value.dtype);
}

// What must be zero comes first; returns its size.
size_t carve_device(Carver& carver, const Program& program, std::vector<Addresses>& addresses) {
  size_t zeroed = 0;
  for (const bool zero : {true, false}) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (value.storage != Storage::kDevice || value.kind == ValueKind::kWeight ||
          value.zeroed != zero) {
        continue;
      }
      addresses[i].fill(carver.take(bytes_of(program, value)));
    }
    if (zero) zeroed = carver.used();
  }
  return zeroed;
}

void carve_pinned(Carver& carver, const Program& program, const InputSizes& sizes, size_t turn,
                  std::vector<Addresses>& addresses, InputBuffers::Pinned& p) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (value.storage == Storage::kPinned) {
      addresses[i][turn] = carver.take(bytes_of(program, value));
    }
  }
  const auto reqs = static_cast<size_t>(sizes.max_reqs);
  carver.take(p.block_table,
              reqs * static_cast<size_t>(sizes.max_blocks) * static_cast<size_t>(sizes.num_paged));
  carver.take(p.bias_token, reqs * kMaxLogitBias);
  carver.take(p.bias_value, reqs * kMaxLogitBias);
  carver.take(p.allowed_mask, reqs * sizes.mask_words());
}

InputSizes sizes_of(const Program& program, int32_t block_size) {
  const PrepareInputsOp& prepare = prepare_op(program);
  InputSizes sizes;
  sizes.max_tokens = prepare.limits.max_tokens;
  sizes.max_reqs = prepare.limits.max_reqs;
  if (prepare.block_table[0] != kNoValue) {
    sizes.max_blocks = static_cast<int32_t>(program.value(prepare.block_table[0]).cols);
  }
  for (const StateGroup& group : program.states) {
    sizes.num_paged += group.kind == StateKind::kPaged ? 1 : 0;
  }
  sizes.block_size = block_size;
  sizes.vocab_size = static_cast<int32_t>(program.vocab_size);
  sizes.num_drafts = static_cast<int32_t>(program.logits_per_request) - 1;
  if (prepare.history != kNoValue)
    sizes.history_cols = static_cast<int32_t>(program.value(prepare.history).cols);
  return sizes;
}

}  // namespace

InputBuffers::InputBuffers(Device& device, Stream& stream, const Program& program,
                           int32_t block_size)
    : sizes_(sizes_of(program, block_size)),
      layout_(prepare_op(program).limits.layout()),
      addresses_(program.values.size()) {
  Carver size(nullptr);
  const size_t zeroed = carve_device(size, program, addresses_);
  device_memory_ = device.allocate(size.used(), MemoryTag::kInputs);
  Carver place(device_memory_->data());
  carve_device(place, program, addresses_);
  for (size_t turn = 0; turn < kernels::kTurns; ++turn) {
    Carver pinned_size(nullptr);
    carve_pinned(pinned_size, program, sizes_, turn, addresses_, pinned_[turn]);
    pinned_memory_[turn] = device.allocate_pinned(pinned_size.used());
    Carver pinned_place(pinned_memory_[turn]->data());
    carve_pinned(pinned_place, program, sizes_, turn, addresses_, pinned_[turn]);
  }
  find_all(program);
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (program.values[i].storage != Storage::kPinned) continue;
    for (void* memory : addresses_[i]) std::memset(memory, 0, bytes_of(program, program.values[i]));
  }
  allocate_states(device, static_cast<size_t>(sizes_.max_reqs) + 1);
  const Filler zeros(device, 0);  // until the copies have been made
  zeros.fill(stream, device_memory_->data(), zeroed);
  set_slot_params(device, stream, program);
}

// Checkpoints of the slot groups' states, and the zeros that a request begins from.
void InputBuffers::allocate_states(Device& device, size_t num_checkpoints) {
  size_t longest = 0, all = 0;
  for (const Slots::Group& group : slots_.groups) {
    for (const Slots::State& state : group.states) {
      longest = std::max(longest, state.slot_bytes());
      all += state.bytes * num_checkpoints;
    }
  }
  if (longest == 0) return;
  zeros_ = device.allocate_pinned(longest);
  std::memset(zeros_->data(), 0, longest);
  checkpoints_ = device.allocate(all, MemoryTag::kKvCache);
  auto* memory = static_cast<std::byte*>(checkpoints_->data());
  for (Slots::Group& group : slots_.groups) {
    for (Slots::State& state : group.states) {
      state.checkpoints = memory;
      memory += state.bytes * num_checkpoints;
    }
  }
}

// What the host itself writes and reads.
void InputBuffers::find_all(const Program& program) {
  const PrepareInputsOp& prepare = prepare_op(program);
  size_t paged = 0;
  for (size_t group = 0; group < program.states.size(); ++group) {
    Slots::Group& of = slots_.groups.emplace_back();
    if (program.states[group].kind == StateKind::kPaged) {
      of.paged = static_cast<int>(paged);
      find(of.block_table, prepare.block_table[paged++]);
    }
  }
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (value.kind != ValueKind::kState || value.group < 0 || value.is_paged()) continue;
    std::byte* memory = nullptr;
    find(memory, static_cast<ValueId>(i));
    const SlotLayout& layout = program.group_of(value).slot;
    slots_.groups[static_cast<size_t>(value.group)].states.push_back(
        {memory, static_cast<size_t>(layout.bytes()), layout.versions, value.dtype, value.layer,
         nullptr});
  }
  for (size_t turn = 0; turn < kernels::kTurns; ++turn)
    find(pinned_[turn].block, prepare.block, turn);
  find_outputs(program);
}

void InputBuffers::find_outputs(const Program& program) {
  if (const PoolOp* pool = pool_op(program)) {
    for (size_t turn = 0; turn < kernels::kTurns; ++turn) {
      find(pinned_[turn].pooled.turn, pool->out_turn, turn);
      find(pinned_[turn].pooled.pooled, pool->pooled, turn);
    }
    return;
  }
  const SampleOp& sample = sample_op(program);
  find(slots_.bias_token, sample.bias_token);
  find(slots_.bias_value, sample.bias_value);
  find(slots_.allowed_mask, sample.allowed_mask);
  for (size_t turn = 0; turn < kernels::kTurns; ++turn) {
    Pinned& pinned = pinned_[turn];
    find(pinned.grammar_mask, sample.grammar_mask, turn);
    find(pinned.grammar_ready, sample.grammar_ready, turn);
    find(pinned.outputs.turn, sample.out_turn, turn);
    find(pinned.outputs.tokens, sample.tokens, turn);
    find(pinned.outputs.logprobs, sample.logprobs, turn);
    find(pinned.outputs.top_tokens, sample.top_tokens, turn);
    find(pinned.outputs.top_logprobs, sample.top_logprobs, turn);
    for (const Op& op : program.ops) {
      std::visit(
          [&](const auto& given) {
            if constexpr (requires { given.grammar_drafts; }) {
              find(pinned.grammar_drafts, given.grammar_drafts, turn);
              find(pinned.grammar_drafts_ready, given.grammar_drafts_ready, turn);
            }
          },
          op);
    }
    if (const AcceptDraftsOp* accept = accept_op(program)) {
      find(pinned.accepted.accepted, accept->accepted, turn);
      find(pinned.accepted.drafted, accept->drafted, turn);
    }
  }
}

void InputBuffers::set_slot_params(Device& device, Stream& stream, const Program& program) const {
  const auto slots = static_cast<size_t>(sizes_.max_reqs) + 1;
  const size_t bytes = slots * sizeof(kernels::SlotParams);
  const auto params = device.allocate_pinned(bytes);
  std::uninitialized_fill_n(static_cast<kernels::SlotParams*>(params->data()), slots,
                            kernels::SlotParams{});
  void* target = nullptr;
  find(target, prepare_op(program).params);
  stream.copy(target, params->data(), bytes);
  stream.synchronize();
}

uint32_t InputBuffers::begin_turn() {
  uint8_t* block = next().block;
  reinterpret_cast<kernels::StepHeader*>(block + layout_.header)->turn = ++turn_;
  return turn_;
}

std::unique_ptr<Buffer> allocate_outputs(Device& device, const Program& program,
                                         std::vector<Addresses>& addresses) {
  addresses.assign(program.values.size(), {});
  const auto carve = [&](Carver& carver) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (value.kind != ValueKind::kOutput || value.storage != Storage::kPinned) continue;
      addresses[i].fill(carver.take(bytes_of(program, value)));
    }
  };
  Carver size(nullptr);
  carve(size);
  auto memory = device.allocate_pinned(size.used());
  Carver place(memory->data());
  carve(place);
  return memory;
}

namespace {
constexpr size_t kFillBytes = size_t{64} << 10;
}  // namespace

Filler::Filler(Device& device, uint8_t byte) : source_(device.allocate_pinned(kFillBytes)) {
  std::memset(source_->data(), byte, kFillBytes);
}

void Filler::fill(Stream& stream, void* to, size_t bytes) const {
  for (size_t done = 0; done < bytes; done += kFillBytes) {
    stream.copy(static_cast<std::byte*>(to) + done, source_->data(),
                std::min(kFillBytes, bytes - done));
  }
}

}  // namespace refrain::worker
