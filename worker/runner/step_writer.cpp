#include "worker/runner/step_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/base/check.h"
#include "worker/dispatch/batch_shape.h"

namespace refrain::worker {
namespace {

using kernels::kMaxLogitBias;
using kernels::SlotParams;
using kernels::StepHeader;
using kernels::StepLayout;

template <class T>
T* place(uint8_t* block, size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

template <class T>
void put(uint8_t* block, size_t offset, const std::vector<T>& values, size_t count) {
  if (count > 0) std::memcpy(block + offset, values.data(), count * sizeof(T));
}

SlotParams params_of(const ipc::SlotSetup& setup, bool has_mask) {
  SlotParams params;
  params.temperature = setup.temperature;
  params.top_p = setup.top_p;
  params.min_p = setup.min_p;
  params.repetition_penalty = setup.repetition_penalty;
  params.presence_penalty = setup.presence_penalty;
  params.frequency_penalty = setup.frequency_penalty;
  params.top_k = setup.top_k;
  params.num_logprobs = setup.num_logprobs;
  params.adapter = setup.adapter;
  params.prompt_len = setup.prompt_len;
  params.num_logit_bias = static_cast<int32_t>(setup.bias_tokens.size());
  params.follows_grammar = setup.follows_output() ? 1 : 0;
  params.has_allowed_mask = has_mask || params.follows_grammar != 0 ? 1 : 0;
  params.uses_history = setup.repetition_penalty != 1.0f || setup.presence_penalty != 0.0f ||
                                setup.frequency_penalty != 0.0f
                            ? 1
                            : 0;
  params.seed = setup.seed;
  return params;
}

}  // namespace

StepWriter::StepWriter(const InputBuffers& buffers, int64_t max_model_len, bool keep_logits,
                       GrammarMasks& grammars)
    : buffers_(buffers),
      sizes_(buffers.sizes()),
      max_model_len_(max_model_len),
      keep_logits_(keep_logits),
      num_logprobs_(static_cast<size_t>(sizes_.max_reqs), -1),
      plainly_greedy_(static_cast<size_t>(sizes_.max_reqs), false),
      uses_history_(static_cast<size_t>(sizes_.max_reqs), false),
      adapter_(static_cast<size_t>(sizes_.max_reqs), -1),
      row_seen_(static_cast<size_t>(sizes_.max_reqs), 0),
      row_begin_(static_cast<size_t>(sizes_.max_reqs), 0),
      row_end_(static_cast<size_t>(sizes_.max_reqs), 0),
      end_masks_(static_cast<size_t>(sizes_.max_reqs)),
      grammars_(grammars),
      grammar_bounds_(static_cast<size_t>(sizes_.max_reqs)) {}

void StepWriter::check_rows(const ipc::Step& step) {
  const ipc::Rows& run = rows_of(step);
  const size_t rows = run.slot.size();
  REFRAIN_CHECK(
      run.num_tokens.size() == rows && run.computed.size() == rows && run.flags.size() == rows,
      "step {}: row arrays differ in length", step.step);
  REFRAIN_CHECK(rows <= static_cast<size_t>(sizes_.max_reqs),
                "step {} has {} rows, max_num_seqs is {}", step.step, rows, sizes_.max_reqs);
  ++writes_;
  int64_t tokens = 0;
  for (size_t row = 0; row < rows; ++row) {
    const SlotId slot = run.slot[row];
    REFRAIN_CHECK(slot >= 0 && slot < sizes_.max_reqs, "step {} row {}: slot {} of {}", step.step,
                  row, slot, sizes_.max_reqs);
    uint64_t& seen = row_seen_[static_cast<size_t>(slot)];
    REFRAIN_CHECK(seen != writes_, "step {} row {}: slot {} takes part twice", step.step, row,
                  slot);
    seen = writes_;
    const int64_t count = run.num_tokens[row], computed = run.computed[row];
    if ((run.flags[row] & ipc::kVerifies) != 0) {
      check_verified(step, row, static_cast<size_t>(tokens));
      // Unknown progress is that of a row with drafts, which has its min_tokens.
      row_end_[static_cast<size_t>(slot)] =
          computed < 0 ? std::numeric_limits<int64_t>::max() : computed + 1;
      tokens += count;
      continue;
    }
    REFRAIN_CHECK(count >= 1 && computed >= 0 && computed + count <= max_model_len_,
                  "step {} row {}: {} tokens after {}, max_model_len is {}", step.step, row, count,
                  computed, max_model_len_);
    row_begin_[static_cast<size_t>(slot)] = computed;
    row_end_[static_cast<size_t>(slot)] = computed + count;
    tokens += count;
  }
  REFRAIN_CHECK(tokens == static_cast<int64_t>(run.token_ids.size()),
                "step {}: rows have {} tokens, token_ids {}", step.step, tokens,
                run.token_ids.size());
  REFRAIN_CHECK(tokens <= sizes_.max_tokens, "step {} has {} tokens, max_num_batched_tokens is {}",
                step.step, tokens, sizes_.max_tokens);
  for (const TokenId token : run.token_ids) {
    REFRAIN_CHECK(token >= kTokenOnDevice && token < sizes_.vocab_size,
                  "step {}: token {} of a vocabulary of {}", step.step, token, sizes_.vocab_size);
  }
}

// A row of what the device knows alone. Its length is bounded there.
void StepWriter::check_verified(const ipc::Step& step, size_t row, size_t first_token) const {
  const ipc::Rows& run = rows_of(step);
  const int64_t count = run.num_tokens[row], computed = run.computed[row];
  REFRAIN_CHECK(sizes_.num_drafts > 0 && count >= 1 && count <= 1 + sizes_.num_drafts &&
                    computed >= ipc::kComputedOnDevice && computed < max_model_len_ &&
                    (run.flags[row] & ipc::kSamples) != 0,
                "step {} row {}: verifies {} tokens after {}, at most {} are drafts", step.step,
                row, count, computed, sizes_.num_drafts);
  for (size_t i = first_token; i < first_token + static_cast<size_t>(count); ++i) {
    REFRAIN_CHECK(i < run.token_ids.size() && run.token_ids[i] == kTokenOnDevice,
                  "step {} row {}: verifies tokens that are not on the device", step.step, row);
  }
}

void StepWriter::check_updates(StepId step, const ipc::BlockUpdates& blocks, size_t group) const {
  const size_t updates = blocks.slot.size();
  if (updates == 0) return;
  REFRAIN_CHECK(blocks.index.size() == updates && blocks.block.size() == updates,
                "step {}: block arrays differ in length", step);
  REFRAIN_CHECK(
      updates <= static_cast<size_t>(sizes_.max_reqs) * static_cast<size_t>(sizes_.max_blocks),
      "step {}: {} block updates", step, updates);
  const int64_t num_blocks = group < num_blocks_.size() ? num_blocks_[group] : 0;
  for (size_t i = 0; i < updates; ++i) {
    REFRAIN_CHECK(blocks.slot[i] >= 0 && blocks.slot[i] < sizes_.max_reqs && blocks.index[i] >= 0 &&
                      blocks.index[i] < sizes_.max_blocks && blocks.block[i] > kReservedBlock &&
                      blocks.block[i] < num_blocks,
                  "step {}: block {} at index {} of slot {} in state group {} (blocks 1 to {}, {} "
                  "a request)",
                  step, blocks.block[i], blocks.index[i], blocks.slot[i], group, num_blocks - 1,
                  sizes_.max_blocks);
  }
}

void StepWriter::check_updates(const ipc::Step& step) const {
  REFRAIN_CHECK(step.blocks.size() <= buffers_.slots().groups.size(),
                "step {}: blocks of {} state groups, the Program has {}", step.step,
                step.blocks.size(), buffers_.slots().groups.size());
  for (size_t group = 0; group < step.blocks.size(); ++group) {
    check_updates(step.step, step.blocks[group], group);
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
    REFRAIN_CHECK(buffers_.slots().bias_token != nullptr ||
                      (setup.bias_tokens.empty() && !has_mask(setup) && !setup.follows_output()),
                  "step {} slot {}: a model that pools samples no tokens", step.step, setup.slot);
    for (const TokenId token : setup.allowed_tokens) {
      REFRAIN_CHECK(token >= 0 && token < sizes_.vocab_size,
                    "step {} slot {}: allowed token {} of a vocabulary of {}", step.step,
                    setup.slot, token, sizes_.vocab_size);
    }
    REFRAIN_CHECK(setup.adapter >= -1 && setup.adapter < num_places_,
                  "step {} slot {}: LoRA adapter at place {} of {}", step.step, setup.slot,
                  setup.adapter, num_places_);
    check_mask(step, setup);
    REFRAIN_CHECK(setup.history_begin >= 0 &&
                      setup.history_begin + std::ssize(setup.history) <= sizes_.history_cols,
                  "step {} slot {}: {} tokens from {} on, {} are kept", step.step, setup.slot,
                  setup.history.size(), setup.history_begin, sizes_.history_cols);
    for (const TokenId token : setup.history) {
      REFRAIN_CHECK(token >= 0 && token < sizes_.vocab_size,
                    "step {} slot {}: token {} of a vocabulary of {}", step.step, setup.slot, token,
                    sizes_.vocab_size);
    }
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

void StepWriter::write_rows(const ipc::Rows& rows, uint8_t* block) const {
  const StepLayout& layout = buffers_.layout();
  const size_t count = rows.slot.size();
  put(block, layout.token_ids, rows.token_ids, rows.token_ids.size());
  put(block, layout.row_slot, rows.slot, count);
  put(block, layout.row_query_len, rows.num_tokens, count);
  put(block, layout.row_context, rows.computed, count);
  put(block, layout.row_flags, rows.flags, count);
  if (sizes_.num_drafts == 0) return;
  size_t next = 0;
  for (size_t row = 0; row < count; ++row) {
    if ((rows.flags[row] & ipc::kContinues) != 0)
      place<int32_t>(block, layout.row_next)[row] = rows.next_tokens.at(next++);
  }
}

// As many as the block has room for go into it, group after group; the rest straight into the block
// tables. Both are ordered before the step.
void StepWriter::write_block_updates(const ipc::Step& step, StepHeader& header,
                                     Stream& stream) const {
  const StepLayout& layout = buffers_.layout();
  size_t placed = 0, copied = 0;
  for (size_t group = 0; group < step.blocks.size(); ++group) {
    const ipc::BlockUpdates& updates = step.blocks[group];
    if (updates.slot.empty() || buffers_.slots().groups[group].paged < 0) continue;
    const size_t inside =
        std::min(updates.slot.size(), static_cast<size_t>(layout.max_block_updates) - placed);
    uint8_t* block = buffers_.next().block + placed * sizeof(int32_t);
    put(block, layout.update_slot, updates.slot, inside);
    put(block, layout.update_index, updates.index, inside);
    put(block, layout.update_block, updates.block, inside);
    const InputBuffers::Slots::Group& of = buffers_.slots().groups[group];
    header.num_block_updates[of.paged] = static_cast<int32_t>(inside);
    placed += inside;
    copy_block_updates(updates, inside, of.block_table, copied, stream);
  }
}

// Those from `begin` on, in runs of consecutive indices. `copied`: of this step, so far.
void StepWriter::copy_block_updates(const ipc::BlockUpdates& updates, size_t begin,
                                    int32_t* block_table, size_t& copied, Stream& stream) const {
  while (begin < updates.slot.size()) {
    size_t end = begin + 1;
    while (end < updates.slot.size() && updates.slot[end] == updates.slot[begin] &&
           updates.index[end] == updates.index[end - 1] + 1) {
      ++end;
    }
    const size_t bytes = (end - begin) * sizeof(int32_t);
    int32_t* source = buffers_.next().block_table + copied;
    std::memcpy(source, updates.block.data() + begin, bytes);
    const int64_t row = int64_t{updates.slot[begin]} * sizes_.max_blocks;
    stream.copy(block_table + row + updates.index[begin], source, bytes);
    copied += end - begin;
    begin = end;
  }
}

// A request that enters a slot finds its states zero.
void StepWriter::clear_states(SlotId slot, Stream& stream) const {
  for (const InputBuffers::Slots::Group& group : buffers_.slots().groups) {
    for (const InputBuffers::Slots::State& state : group.states) {
      stream.copy(state.of(slot), buffers_.zeros(), state.slot_bytes());
    }
  }
}

// Of the rows that begin, or end, where a checkpoint stands.
void StepWriter::copy_checkpoints(const ipc::Step& step, Border border, Stream& stream) const {
  for (size_t group = 0; group < step.blocks.size(); ++group) {
    const ipc::BlockUpdates& updates = step.blocks[group];
    for (size_t i = 0; i < updates.slot.size(); ++i) {
      const SlotId slot = updates.slot[i];
      const int64_t at = int64_t{updates.index[i]} * sizes_.block_size;
      const auto& border_of = border == Border::kBegins ? row_begin_ : row_end_;
      if (at != border_of[static_cast<size_t>(slot)]) continue;
      for (const InputBuffers::Slots::State& state : buffers_.slots().groups[group].states) {
        std::byte* of_slot = state.after(slot, at);
        std::byte* kept = state.checkpoints + static_cast<size_t>(updates.block[i]) * state.bytes;
        const bool restores = border == Border::kBegins;
        stream.copy(restores ? of_slot : kept, restores ? kept : of_slot, state.bytes);
      }
    }
  }
}

void StepWriter::keep_checkpoints(const ipc::Step& step, Stream& stream) const {
  copy_checkpoints(step, Border::kEnds, stream);
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
  grammar_bounds_[slot].clear();
  grammars_.set_up(setup);
  if (has_mask(setup)) write_mask(setup, index, stream);
}

// Tokens that the slot begins with, behind the `at` of others; returns how many there are then.
int32_t StepWriter::write_history(const ipc::SlotSetup& setup, size_t index, int32_t at) const {
  if (sizes_.num_drafts == 0) return 0;
  const StepLayout& layout = buffers_.layout();
  uint8_t* block = buffers_.next().block;
  const auto count = static_cast<int32_t>(setup.history.size());
  REFRAIN_CHECK(at + count <= layout.max_history, "slot {}: {} tokens of the history, {} have room",
                setup.slot, at + count, layout.max_history);
  int32_t* part = place<int32_t>(block, layout.history_part) + 2 * index;
  part[0] = setup.history_begin;
  part[1] = count;
  std::copy(setup.history.begin(), setup.history.end(), place<int32_t>(block, layout.history) + at);
  return at + count;
}

int32_t StepWriter::write_setups(const ipc::Step& step, Stream& stream) {
  int32_t history = 0;
  const StepLayout& layout = buffers_.layout();
  uint8_t* block = buffers_.next().block;
  for (size_t i = 0; i < step.setups.size(); ++i) {
    const ipc::SlotSetup& setup = step.setups[i];
    place<int32_t>(block, layout.params_slot)[i] = setup.slot;
    const SlotParams params = params_of(setup, has_mask(setup));
    place<SlotParams>(block, layout.params)[i] = params;
    plainly_greedy_[static_cast<size_t>(setup.slot)] = kernels::is_plain_greedy(params);
    uses_history_[static_cast<size_t>(setup.slot)] = params.uses_history != 0;
    num_logprobs_[static_cast<size_t>(setup.slot)] = setup.num_logprobs;
    adapter_[static_cast<size_t>(setup.slot)] = setup.adapter;
    clear_states(setup.slot, stream);
    history = write_history(setup, i, history);
    write_side_data(setup, i, stream);
  }
  return history;
}

// A place takes another adapter when no row has the one before; rows with one run with the key that
// says so (CG-15).
void StepWriter::check_adapters(const ipc::Step& step) const {
  for (const SlotId slot : rows_of(step).slot) {
    const int32_t adapter = adapter_[static_cast<size_t>(slot)];
    if (adapter < 0) continue;
    REFRAIN_CHECK(step.has_lora, "step {}: slot {} has a LoRA adapter, the step none", step.step,
                  slot);
  }
}

void StepWriter::write(const ipc::Step& step, Stream& stream) {
  check_rows(step);
  REFRAIN_CHECK(
      step.cascade == (step.shared_prefix > 0) && step.shared_prefix % sizes_.block_size == 0,
      "step {}: a shared prefix of {} tokens in blocks of {}", step.step, step.shared_prefix,
      sizes_.block_size);
  check_updates(step);
  uint8_t* block = buffers_.next().block;
  StepHeader header;
  const ipc::Rows& rows = rows_of(step);
  header.num_tokens = static_cast<int32_t>(rows.token_ids.size());
  header.num_reqs = static_cast<int32_t>(rows.slot.size());
  header.num_slot_updates = static_cast<int32_t>(step.setups.size());
  header.keep_logits = keep_logits_ || step.audit ? 1 : 0;
  write_rows(rows, block);
  write_block_updates(step, header, stream);
  header.num_history = write_setups(step, stream);
  check_adapters(step);
  copy_checkpoints(step, Border::kBegins, stream);
  lift_masks(step, stream);
  *place<StepHeader>(block, buffers_.layout().header) = header;
}

}  // namespace refrain::worker
