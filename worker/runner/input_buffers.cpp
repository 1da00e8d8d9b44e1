#include "worker/runner/input_buffers.h"

#include <cstring>

#include "worker/runner/value_memory.h"

namespace refrain::worker {
namespace {

using kernels::kMaxLogitBias;

// What must be zero comes first; returns its size.
size_t carve_device(Carver& carver, const Program& program, std::vector<Addresses>& addresses) {
  size_t zeroed = 0;
  for (const bool zero : {true, false}) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (value.storage != Storage::kDevice || value.kind == ValueKind::kWeight ||
          value.is_of_slots() || value.zeroed != zero) {
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
                           int32_t block_size, const SlotStates& slots)
    : sizes_(sizes_of(program, block_size)),
      layout_(prepare_op(program).limits.layout()),
      addresses_(slots.addresses()) {
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
    find(pinned_[turn].block, prepare_op(program).block, turn);
  }
  find_outputs(program);
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (program.values[i].storage != Storage::kPinned) continue;
    for (void* memory : addresses_[i]) std::memset(memory, 0, bytes_of(program, program.values[i]));
  }
  const Filler zeros(device, 0);  // until the copies have been made
  zeros.fill(stream, device_memory_->data(), zeroed);
  stream.synchronize();
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

}  // namespace refrain::worker
