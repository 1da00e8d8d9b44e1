#include "worker/runner/step_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

using kernels::kMaxLogitBias;
using kernels::SlotParams;
using kernels::StepHeader;
using kernels::StepLayout;

template <class T>
T* at(uint8_t* block, size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

template <class T>
void put(uint8_t* block, size_t offset, const std::vector<T>& values, size_t count) {
  if (count > 0) std::memcpy(block + offset, values.data(), count * sizeof(T));
}

// min_tokens are kept by a mask without the end tokens, replaced when they are made.
bool has_mask(const ipc::SlotSetup& setup) {
  return setup.has_allowed_tokens || setup.min_tokens > 0;
}

void set_bit(uint32_t* mask, TokenId token) { mask[token / 32] |= 1u << (token % 32); }
void clear_bit(uint32_t* mask, TokenId token) { mask[token / 32] &= ~(1u << (token % 32)); }

SlotParams params_of(const ipc::SlotSetup& setup) {
  SlotParams params;
  params.temperature = setup.temperature;
  params.top_p = setup.top_p;
  params.min_p = setup.min_p;
  params.repetition_penalty = setup.repetition_penalty;
  params.presence_penalty = setup.presence_penalty;
  params.frequency_penalty = setup.frequency_penalty;
  params.top_k = setup.top_k;
  params.num_logprobs = setup.num_logprobs;
  params.prompt_len = setup.prompt_len;
  params.num_logit_bias = static_cast<int32_t>(setup.bias_tokens.size());
  params.has_allowed_mask = has_mask(setup) ? 1 : 0;
  params.uses_history = setup.repetition_penalty != 1.0f || setup.presence_penalty != 0.0f ||
                                setup.frequency_penalty != 0.0f
                            ? 1
                            : 0;
  params.seed = setup.seed;
  return params;
}

}  // namespace

StepWriter::StepWriter(const InputBuffers& buffers, int64_t max_model_len, bool keep_logits)
    : buffers_(buffers),
      sizes_(buffers.sizes()),
      max_model_len_(max_model_len),
      keep_logits_(keep_logits),
      num_logprobs_(static_cast<size_t>(sizes_.max_reqs), -1),
      plainly_greedy_(static_cast<size_t>(sizes_.max_reqs), false),
      uses_history_(static_cast<size_t>(sizes_.max_reqs), false),
      row_seen_(static_cast<size_t>(sizes_.max_reqs), 0),
      row_end_(static_cast<size_t>(sizes_.max_reqs), 0),
      end_masks_(static_cast<size_t>(sizes_.max_reqs)) {}

void StepWriter::check_rows(const ipc::Step& step) {
  const size_t rows = step.row_slot.size();
  REFRAIN_CHECK(step.row_num_tokens.size() == rows && step.row_computed.size() == rows &&
                    step.row_flags.size() == rows,
                "step {}: row arrays differ in length", step.step);
  REFRAIN_CHECK(rows <= static_cast<size_t>(sizes_.max_reqs),
                "step {} has {} rows, max_num_seqs is {}", step.step, rows, sizes_.max_reqs);
  ++writes_;
  int64_t tokens = 0;
  for (size_t row = 0; row < rows; ++row) {
    const SlotId slot = step.row_slot[row];
    REFRAIN_CHECK(slot >= 0 && slot < sizes_.max_reqs, "step {} row {}: slot {} of {}", step.step,
                  row, slot, sizes_.max_reqs);
    uint64_t& seen = row_seen_[static_cast<size_t>(slot)];
    REFRAIN_CHECK(seen != writes_, "step {} row {}: slot {} takes part twice", step.step, row,
                  slot);
    seen = writes_;
    const int64_t count = step.row_num_tokens[row], computed = step.row_computed[row];
    REFRAIN_CHECK(count >= 1 && computed >= 0 && computed + count <= max_model_len_,
                  "step {} row {}: {} tokens after {}, max_model_len is {}", step.step, row, count,
                  computed, max_model_len_);
    row_end_[static_cast<size_t>(slot)] = computed + count;
    tokens += count;
  }
  REFRAIN_CHECK(tokens == static_cast<int64_t>(step.token_ids.size()),
                "step {}: rows have {} tokens, token_ids {}", step.step, tokens,
                step.token_ids.size());
  REFRAIN_CHECK(tokens <= sizes_.max_tokens, "step {} has {} tokens, max_num_batched_tokens is {}",
                step.step, tokens, sizes_.max_tokens);
  for (const TokenId token : step.token_ids) {
    REFRAIN_CHECK(token >= kTokenOnDevice && token < sizes_.vocab_size,
                  "step {}: token {} of a vocabulary of {}", step.step, token, sizes_.vocab_size);
  }
}

void StepWriter::check_updates(const ipc::Step& step) const {
  const size_t updates = step.block_slot.size();
  REFRAIN_CHECK(step.block_index.size() == updates && step.block_id.size() == updates,
                "step {}: block arrays differ in length", step.step);
  REFRAIN_CHECK(
      updates <= static_cast<size_t>(sizes_.max_reqs) * static_cast<size_t>(sizes_.max_blocks),
      "step {}: {} block updates", step.step, updates);
  for (size_t i = 0; i < updates; ++i) {
    REFRAIN_CHECK(step.block_slot[i] >= 0 && step.block_slot[i] < sizes_.max_reqs &&
                      step.block_index[i] >= 0 && step.block_index[i] < sizes_.max_blocks &&
                      step.block_id[i] > kReservedBlock && step.block_id[i] < num_blocks_,
                  "step {}: block {} at index {} of slot {} (blocks 1 to {}, {} a request)",
                  step.step, step.block_id[i], step.block_index[i], step.block_slot[i],
                  num_blocks_ - 1, sizes_.max_blocks);
  }
  REFRAIN_CHECK(step.setups.size() <= static_cast<size_t>(sizes_.max_reqs),
                "step {}: {} slots set up", step.step, step.setups.size());
  for (const ipc::SlotSetup& setup : step.setups) {
    REFRAIN_CHECK(setup.slot >= 0 && setup.slot < sizes_.max_reqs, "step {}: set-up of slot {}",
                  step.step, setup.slot);
    REFRAIN_CHECK(setup.bias_tokens.size() == setup.bias_values.size() &&
                      setup.bias_tokens.size() <= kMaxLogitBias,
                  "step {} slot {}: {} bias tokens, {} values, at most {}", step.step, setup.slot,
                  setup.bias_tokens.size(), setup.bias_values.size(), kMaxLogitBias);
    for (const TokenId token : setup.allowed_tokens) {
      REFRAIN_CHECK(token >= 0 && token < sizes_.vocab_size,
                    "step {} slot {}: allowed token {} of a vocabulary of {}", step.step,
                    setup.slot, token, sizes_.vocab_size);
    }
    check_mask(step, setup);
    for (const TokenId token : setup.end_tokens) {
      REFRAIN_CHECK(token >= 0 && token < sizes_.vocab_size,
                    "step {} slot {}: end token {} of a vocabulary of {}", step.step, setup.slot,
                    token, sizes_.vocab_size);
    }
  }
}

void StepWriter::check_mask(const ipc::Step& step, const ipc::SlotSetup& setup) const {
  const size_t words = setup.allowed_mask.size();
  const bool beyond = words == sizes_.mask_words() && sizes_.vocab_size % 32 != 0 &&
                      setup.allowed_mask.back() >> (sizes_.vocab_size % 32) != 0;
  REFRAIN_CHECK(words <= sizes_.mask_words() && !beyond,
                "step {} slot {}: a mask of {} words allows tokens beyond a vocabulary of {}",
                step.step, setup.slot, words, sizes_.vocab_size);
}

void StepWriter::write_rows(const ipc::Step& step, uint8_t* block) const {
  const StepLayout& layout = buffers_.layout();
  const size_t rows = step.row_slot.size();
  put(block, layout.token_ids, step.token_ids, step.token_ids.size());
  put(block, layout.row_slot, step.row_slot, rows);
  put(block, layout.row_query_len, step.row_num_tokens, rows);
  put(block, layout.row_context, step.row_computed, rows);
  put(block, layout.row_flags, step.row_flags, rows);
}

// As many as the block has room for go into it; the rest, in runs of consecutive indices, straight
// into the block tables. Both are ordered before the step. Returns the number in the block.
int32_t StepWriter::write_block_updates(const ipc::Step& step, Stream& stream) const {
  const StepLayout& layout = buffers_.layout();
  const InputBuffers::Pinned& pinned = buffers_.next();
  const size_t updates = step.block_slot.size();
  const size_t inside = std::min(updates, static_cast<size_t>(layout.max_block_updates));
  put(pinned.block, layout.update_slot, step.block_slot, inside);
  put(pinned.block, layout.update_index, step.block_index, inside);
  put(pinned.block, layout.update_block, step.block_id, inside);
  for (size_t begin = inside; begin < updates;) {
    size_t end = begin + 1;
    while (end < updates && step.block_slot[end] == step.block_slot[begin] &&
           step.block_index[end] == step.block_index[end - 1] + 1) {
      ++end;
    }
    int32_t* source = pinned.block_table + begin;
    std::memcpy(source, step.block_id.data() + begin, (end - begin) * sizeof(int32_t));
    const int64_t row = int64_t{step.block_slot[begin]} * sizes_.max_blocks;
    stream.copy(buffers_.slots().block_table + row + step.block_index[begin], source,
                (end - begin) * sizeof(int32_t));
    begin = end;
  }
  return static_cast<int32_t>(inside);
}

void StepWriter::write_side_data(const ipc::SlotSetup& setup, size_t index, Stream& stream) {
  const InputBuffers::Pinned& pinned = buffers_.next();
  const InputBuffers::Slots& slots = buffers_.slots();
  const auto slot = static_cast<size_t>(setup.slot);
  if (const size_t count = setup.bias_tokens.size(); count > 0) {
    int32_t* tokens = pinned.bias_token + index * kMaxLogitBias;
    float* values = pinned.bias_value + index * kMaxLogitBias;
    std::copy(setup.bias_tokens.begin(), setup.bias_tokens.end(), tokens);
    std::copy(setup.bias_values.begin(), setup.bias_values.end(), values);
    stream.copy(slots.bias_token + slot * kMaxLogitBias, tokens, count * sizeof(int32_t));
    stream.copy(slots.bias_value + slot * kMaxLogitBias, values, count * sizeof(float));
  }
  end_masks_[slot].until = 0;
  if (has_mask(setup)) write_mask(setup, index, stream);
}

void StepWriter::write_mask(const ipc::SlotSetup& setup, size_t index, Stream& stream) {
  const auto slot = static_cast<size_t>(setup.slot);
  const size_t words = sizes_.mask_words();
  uint32_t* mask = buffers_.next().allowed_mask + index * words;
  std::fill_n(mask, words, setup.has_allowed_tokens ? 0u : ~0u);
  std::copy(setup.allowed_mask.begin(), setup.allowed_mask.end(), mask);
  for (const TokenId token : setup.allowed_tokens) set_bit(mask, token);
  const int64_t until = int64_t{setup.prompt_len} + setup.min_tokens;
  const bool made = row_seen_[slot] == writes_ && row_end_[slot] >= until;
  if (setup.min_tokens > 0 && !made) {
    end_masks_[slot].until = until;
    end_masks_[slot].mask.assign(mask, mask + words);
    for (const TokenId token : setup.end_tokens) clear_bit(mask, token);
  }
  stream.copy(buffers_.slots().allowed_mask + slot * words, mask, words * sizeof(uint32_t));
}

// Of rows that sample beyond their min_tokens in this step. They and the slots that are set up are
// different slots, so that the pinned rows suffice for both.
void StepWriter::lift_masks(const ipc::Step& step, Stream& stream) {
  const size_t words = sizes_.mask_words();
  size_t index = step.setups.size();
  for (const SlotId row_slot : step.row_slot) {
    const auto slot = static_cast<size_t>(row_slot);
    EndMask& held = end_masks_[slot];
    if (held.until == 0 || row_end_[slot] < held.until) continue;
    held.until = 0;
    REFRAIN_CHECK(index < static_cast<size_t>(sizes_.max_reqs), "step {}: {} masks", step.step,
                  index + 1);
    uint32_t* mask = buffers_.next().allowed_mask + index++ * words;
    std::copy(held.mask.begin(), held.mask.end(), mask);
    stream.copy(buffers_.slots().allowed_mask + slot * words, mask, words * sizeof(uint32_t));
  }
}

void StepWriter::write_setups(const ipc::Step& step, Stream& stream) {
  const StepLayout& layout = buffers_.layout();
  uint8_t* block = buffers_.next().block;
  for (size_t i = 0; i < step.setups.size(); ++i) {
    const ipc::SlotSetup& setup = step.setups[i];
    at<int32_t>(block, layout.params_slot)[i] = setup.slot;
    const SlotParams params = params_of(setup);
    at<SlotParams>(block, layout.params)[i] = params;
    plainly_greedy_[static_cast<size_t>(setup.slot)] = kernels::is_plain_greedy(params);
    uses_history_[static_cast<size_t>(setup.slot)] = params.uses_history != 0;
    num_logprobs_[static_cast<size_t>(setup.slot)] = setup.num_logprobs;
    write_side_data(setup, i, stream);
  }
}

void StepWriter::write(const ipc::Step& step, Stream& stream) {
  check_rows(step);
  check_updates(step);
  uint8_t* block = buffers_.next().block;
  StepHeader header;
  header.num_tokens = static_cast<int32_t>(step.token_ids.size());
  header.num_reqs = static_cast<int32_t>(step.row_slot.size());
  header.num_slot_updates = static_cast<int32_t>(step.setups.size());
  header.keep_logits = keep_logits_ || step.audit ? 1 : 0;
  write_rows(step, block);
  header.num_block_updates = write_block_updates(step, stream);
  write_setups(step, stream);
  lift_masks(step, stream);
  *at<StepHeader>(block, buffers_.layout().header) = header;
}

}  // namespace refrain::worker
