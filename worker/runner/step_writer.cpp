#include "worker/runner/step_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "worker/dispatch/batch_shape.h"

namespace refrain::worker {
namespace {

using kernels::kMaxLogitBias;
using kernels::SlotParams;
using kernels::StepHeader;
using kernels::StepLayout;

// Flags of rows go as they came.
static_assert(uint8_t{ipc::kSamples} == kernels::kRowSamples);
static_assert(uint8_t{ipc::kVerifies} == kernels::kRowVerifies);
static_assert(uint8_t{ipc::kNoDrafts} == kernels::kRowNoDrafts);
static_assert(uint8_t{ipc::kContinues} == kernels::kRowContinues);

template <class T>
T* place(uint8_t* block, size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

template <class T>
void put(uint8_t* block, size_t offset, const std::vector<T>& values, size_t count) {
  if (count > 0) std::memcpy(block + offset, values.data(), count * sizeof(T));
}

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
  params.adapter = setup.adapter;
  params.prompt_len = setup.prompt_len;
  params.num_logit_bias = static_cast<int32_t>(setup.bias_tokens.size());
  params.follows_grammar = setup.follows_output() ? 1 : 0;
  params.has_allowed_mask = has_token_mask(setup) || params.follows_grammar != 0 ? 1 : 0;
  params.uses_history = setup.repetition_penalty != 1.0f || setup.presence_penalty != 0.0f ||
                                setup.frequency_penalty != 0.0f
                            ? 1
                            : 0;
  params.seed = setup.seed;
  return params;
}

}  // namespace

StepWriter::StepWriter(const InputBuffers& buffers, const SlotStates& slots, SlotTable& table,
                       GrammarMasks& grammars, const Program& program, int64_t max_model_len,
                       bool keep_logits)
    : buffers_(buffers),
      sizes_(buffers.sizes()),
      slots_(slots),
      table_(table),
      keep_logits_(keep_logits),
      check_(buffers.sizes(), program.states.size(), pool_op(program) == nullptr, max_model_len),
      masks_(buffers, slots, table, grammars, check_) {}

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
    const SlotStates::Group& of = slots_.groups()[group];
    if (updates.slot.empty() || of.paged < 0) continue;
    const size_t inside =
        std::min(updates.slot.size(), static_cast<size_t>(layout.max_block_updates) - placed);
    uint8_t* block = buffers_.next().block + placed * sizeof(int32_t);
    put(block, layout.update_slot, updates.slot, inside);
    put(block, layout.update_index, updates.index, inside);
    put(block, layout.update_block, updates.block, inside);
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

// Of the rows that begin, or end, where a checkpoint stands.
void StepWriter::copy_checkpoints(const ipc::Step& step, SlotStates::Checkpoint direction,
                                  Stream& stream) const {
  for (size_t group = 0; group < step.blocks.size(); ++group) {
    const ipc::BlockUpdates& updates = step.blocks[group];
    for (size_t i = 0; i < updates.slot.size(); ++i) {
      const SlotId slot = updates.slot[i];
      const int64_t at = int64_t{updates.index[i]} * sizes_.block_size;
      const bool restores = direction == SlotStates::Checkpoint::kRestore;
      if (at != (restores ? check_.row_begin(slot) : check_.row_end(slot))) continue;
      slots_.copy(direction, group, slot, at, updates.block[i], stream);
    }
  }
}

void StepWriter::keep_checkpoints(const ipc::Step& step, Stream& stream) const {
  copy_checkpoints(step, SlotStates::Checkpoint::kKeep, stream);
}

void StepWriter::write_bias(const ipc::SlotSetup& setup, size_t index, Stream& stream) const {
  const size_t count = setup.bias_tokens.size();
  if (count == 0) return;
  const InputBuffers::Pinned& pinned = buffers_.next();
  int32_t* tokens = pinned.bias_token + index * kMaxLogitBias;
  float* values = pinned.bias_value + index * kMaxLogitBias;
  std::copy(setup.bias_tokens.begin(), setup.bias_tokens.end(), tokens);
  std::copy(setup.bias_values.begin(), setup.bias_values.end(), values);
  const size_t first = static_cast<size_t>(setup.slot) * kMaxLogitBias;
  stream.copy(slots_.bias_token() + first, tokens, count * sizeof(int32_t));
  stream.copy(slots_.bias_value() + first, values, count * sizeof(float));
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
    const SlotParams params = params_of(setup);
    place<SlotParams>(block, layout.params)[i] = params;
    SlotRequest& request = table_.at(setup.slot);
    request.plainly_greedy = kernels::is_plain_greedy(params);
    request.uses_history = params.uses_history != 0;
    request.num_logprobs = setup.num_logprobs;
    request.adapter = setup.adapter;
    slots_.clear(setup.slot, stream);
    history = write_history(setup, i, history);
    write_bias(setup, i, stream);
    masks_.set_up(setup, i, stream);
  }
  return history;
}

// A place takes another adapter when no row has the one before; rows with one run with the key that
// says so (CG-15).
void StepWriter::check_adapters(const ipc::Step& step) const {
  for (const SlotId slot : rows_of(step).slot) {
    REFRAIN_CHECK(table_.at(slot).adapter < 0 || step.has_lora,
                  "step {}: slot {} has a LoRA adapter, the step none", step.step, slot);
  }
}

void StepWriter::write(const ipc::Step& step, Stream& stream) {
  check_.check(step);
  uint8_t* block = buffers_.next().block;
  StepHeader header;
  const ipc::Rows& rows = rows_of(step);
  header.step = static_cast<uint32_t>(step.step);
  header.num_tokens = static_cast<int32_t>(rows.token_ids.size());
  header.num_reqs = static_cast<int32_t>(rows.slot.size());
  header.num_slot_updates = static_cast<int32_t>(step.setups.size());
  header.keep_logits = keep_logits_ || step.audit ? 1 : 0;
  write_rows(rows, block);
  write_block_updates(step, header, stream);
  header.num_history = write_setups(step, stream);
  check_adapters(step);
  copy_checkpoints(step, SlotStates::Checkpoint::kRestore, stream);
  masks_.lift(step, stream);
  *place<StepHeader>(block, buffers_.layout().header) = header;
}

}  // namespace refrain::worker
