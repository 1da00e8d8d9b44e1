#include "worker/runner/input_buffers.h"

#include <algorithm>
#include <cstring>

namespace refrain::worker {
namespace {

using kernels::kMaxLogitBias;
using kernels::kMaxLogprobs;

constexpr size_t kAlignment = 256;

// Hands out aligned parts; run once with a null base to learn the size, then to place.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  void take(T*& target, size_t count) {
    if (base_ != nullptr) target = reinterpret_cast<T*>(base_ + used_);
    used_ = (used_ + count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

void carve_outputs(Carver& carver, const InputSizes& sizes, kernels::SampleOutputs& out) {
  const auto reqs = static_cast<size_t>(sizes.max_reqs);
  carver.take(out.turn, 1);
  carver.take(out.tokens, reqs);
  carver.take(out.logprobs, reqs);
  carver.take(out.top_tokens, reqs * kMaxLogprobs);
  carver.take(out.top_logprobs, reqs * kMaxLogprobs);
}

// What must be cleared comes first; returns its size.
size_t carve_device(Carver& carver, const InputSizes& sizes, StepBuffers& b) {
  const auto tokens = static_cast<size_t>(sizes.max_tokens);
  const auto reqs = static_cast<size_t>(sizes.max_reqs);
  const size_t rows = reqs + 1;  // one reserved slot for padded rows
  const auto vocab = static_cast<size_t>(sizes.vocab_size);
  carver.take(b.slots.last_token, rows);
  carver.take(b.slots.block_table, rows * static_cast<size_t>(sizes.max_blocks));
  carver.take(b.inputs.turn, 1);
  carver.take(b.inputs.live_tokens, 1);
  carver.take(b.inputs.live_reqs, 1);
  carver.take(b.inputs.live_logits, 1);
  carver.take(b.inputs.token_ids, tokens);
  carver.take(b.inputs.positions, tokens);
  carver.take(b.inputs.token_row, tokens);
  carver.take(b.inputs.kv_slots, tokens);
  carver.take(b.inputs.query_start, reqs + 1);
  carver.take(b.inputs.seq_lens, reqs);
  carver.take(b.inputs.row_slot, reqs);
  carver.take(b.inputs.logit_index, reqs);
  carver.take(b.inputs.row_flags, reqs);
  const size_t cleared = carver.used();
  carver.take(b.block_copy, b.layout.total);
  carver.take(b.slots.params, rows);
  carver.take(b.slots.output_count, rows * vocab);
  carver.take(b.slots.in_prompt, rows * vocab);
  carver.take(b.slots.bias_token, rows * kMaxLogitBias);
  carver.take(b.slots.bias_value, rows * kMaxLogitBias);
  carver.take(b.slots.allowed_mask, rows * sizes.mask_words());
  carver.take(b.sample_scratch, reqs * vocab);
  return cleared;
}

void carve_pinned(Carver& carver, const InputSizes& sizes, size_t block_bytes,
                  InputBuffers::Pinned& p) {
  const auto reqs = static_cast<size_t>(sizes.max_reqs);
  carver.take(p.block, block_bytes);
  carver.take(p.block_table, reqs * static_cast<size_t>(sizes.max_blocks));
  carver.take(p.bias_token, reqs * kMaxLogitBias);
  carver.take(p.bias_value, reqs * kMaxLogitBias);
  carver.take(p.allowed_mask, reqs * sizes.mask_words());
  carve_outputs(carver, sizes, p.outputs);
}

}  // namespace

InputBuffers::InputBuffers(Device& device, Stream& stream, const InputSizes& sizes)
    : sizes_(sizes) {
  buffers_.layout =
      kernels::make_step_layout(sizes.max_tokens, sizes.max_reqs, sizes.max_block_updates());
  buffers_.slots.num_slots = sizes.max_reqs;
  buffers_.slots.max_blocks = sizes.max_blocks;
  buffers_.slots.vocab_size = sizes.vocab_size;
  Carver size(nullptr);
  const size_t cleared = carve_device(size, sizes, buffers_);
  device_memory_ = device.allocate(size.used(), MemoryTag::kInputs);
  Carver place(device_memory_->data());
  carve_device(place, sizes, buffers_);

  for (size_t i = 0; i < kernels::kTurns; ++i) {
    Carver pinned_size(nullptr);
    carve_pinned(pinned_size, sizes, buffers_.layout.total, pinned_[i]);
    pinned_memory_[i] = device.allocate_pinned(pinned_size.used());
    Carver pinned_place(pinned_memory_[i]->data());
    carve_pinned(pinned_place, sizes, buffers_.layout.total, pinned_[i]);
    std::memset(pinned_[i].block, 0, buffers_.layout.total);
    *pinned_[i].outputs.turn = 0;
    buffers_.blocks[i] = pinned_[i].block;
    buffers_.outputs[i] = pinned_[i].outputs;
  }

  const Filler zeros(device, 0);  // until the copies have been made
  zeros.fill(stream, device_memory_->data(), cleared);
  const size_t params_bytes =
      (static_cast<size_t>(sizes.max_reqs) + 1) * sizeof(kernels::SlotParams);
  const auto params = device.allocate_pinned(params_bytes);
  std::uninitialized_fill_n(static_cast<kernels::SlotParams*>(params->data()), sizes.max_reqs + 1,
                            kernels::SlotParams{});
  stream.copy(buffers_.slots.params, params->data(), params_bytes);
  stream.synchronize();
}

uint32_t InputBuffers::begin_turn() {
  uint8_t* block = next().block;
  reinterpret_cast<kernels::StepHeader*>(block + buffers_.layout.header)->turn = ++turn_;
  return turn_;
}

std::unique_ptr<Buffer> allocate_outputs(Device& device, const InputSizes& sizes,
                                         kernels::SampleOutputs& outputs) {
  Carver size(nullptr);
  carve_outputs(size, sizes, outputs);
  auto memory = device.allocate_pinned(size.used());
  Carver place(memory->data());
  carve_outputs(place, sizes, outputs);
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
