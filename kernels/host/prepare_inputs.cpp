#include "kernels/host/prepare_inputs.h"

#include <algorithm>

#include "kernels/host/launcher.h"
#include "runtime/base/ids.h"

namespace refrain::kernels {
namespace {

template <class T>
const T* part(const PrepareInputsArgs& args, size_t offset) {
  return reinterpret_cast<const T*>(args.blocks[*args.inputs.turn % kTurns] + offset);
}

bool keeps_history(const SlotState& slots, int64_t slot) {
  return slots.output_count != nullptr && slots.in_prompt != nullptr &&
         slots.params[slot].uses_history != 0;
}

// The tokens that the slot begins with, from `at` on in the step block; returns how many.
int32_t begin_history(const PrepareInputsArgs& args, int32_t update, int64_t slot, int32_t at) {
  const auto* given = part<int32_t>(args, args.layout.history_part) + 2 * update;
  const auto* tokens = part<int32_t>(args, args.layout.history) + at;
  const int32_t begin = given[0], count = given[1];
  std::copy_n(tokens, count, args.slots.history + slot * args.slots.history_cols + begin);
  args.slots.history_range[2 * slot] = begin;
  args.slots.history_range[2 * slot + 1] = begin + count;
  return count;
}

void apply_parameters(const PrepareInputsArgs& args, int32_t count) {
  const auto* slot_of = part<int32_t>(args, args.layout.params_slot);
  const auto* params = part<SlotParams>(args, args.layout.params);
  const int64_t vocab = args.slots.vocab_size;
  int32_t at_history = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t slot = slot_of[i];
    args.slots.params[slot] = params[i];
    if (args.slots.history != nullptr) at_history += begin_history(args, i, slot, at_history);
    if (!keeps_history(args.slots, slot)) continue;
    std::fill_n(args.slots.output_count + slot * vocab, vocab, 0);
    std::fill_n(args.slots.in_prompt + slot * vocab, vocab, uint8_t{0});
  }
}

// One after the other by group, as the block has them.
void apply_block_updates(const PrepareInputsArgs& args, const int32_t (&count)[kMaxPagedGroups]) {
  const auto* slot = part<int32_t>(args, args.layout.update_slot);
  const auto* index = part<int32_t>(args, args.layout.update_index);
  const auto* block = part<int32_t>(args, args.layout.update_block);
  int32_t i = 0;
  for (int32_t group = 0; group < args.num_paged; ++group) {
    for (const int32_t end = i + count[group]; i < end; ++i) {
      args.paged[group].block_table[int64_t{slot[i]} * args.max_blocks + index[i]] = block[i];
    }
  }
}

// A token that the message brought: part of the prompt, or an output fed again (after preemption).
// A token resolved on the device was counted when it was sampled.
void record_fed(const SlotState& slots, int64_t slot, int32_t position, int32_t token) {
  if (!keeps_history(slots, slot) || token < 0 || token >= slots.vocab_size) return;
  const int64_t at = slot * slots.vocab_size + token;
  if (position < slots.params[slot].prompt_len) {
    slots.in_prompt[at] = 1;
  } else {
    ++slots.output_count[at];
  }
}

// The logit rows of row `row`: those of its last `count` tokens.
void fill_samples(const BatchInputs& in, int32_t row, int32_t count) {
  const int32_t first = in.sample_start[row], end = in.query_start[row + 1];
  in.sample_start[row + 1] = first + count;
  for (int32_t i = 0; i < count; ++i) {
    in.sample_slot[first + i] = in.row_slot[row];
    in.sample_flags[first + i] = in.row_flags[row];
    in.sample_lens[first + i] = in.seq_lens[row] - count + 1 + i;
    in.logit_index[first + i] = std::max(end - count + i, 0);
  }
}

// Fills the tokens of row `row` from `token` on; returns the next row's first token.
int32_t fill_row(const PrepareInputsArgs& args, int32_t row, int32_t token) {
  const auto* ids = part<int32_t>(args, args.layout.token_ids);
  const int64_t slot = part<int32_t>(args, args.layout.row_slot)[row];
  const uint8_t flags = part<uint8_t>(args, args.layout.row_flags)[row];
  const bool verifies = (flags & kRowVerifies) != 0;
  const int32_t context = verifies ? std::max(args.slots.history_range[2 * slot + 1] - 1, 0)
                                   : part<int32_t>(args, args.layout.row_context)[row];
  const int32_t count = part<int32_t>(args, args.layout.row_query_len)[row];
  const BatchInputs& in = args.inputs;
  for (int32_t i = 0; i < count; ++i, ++token) {
    const int32_t position = context + i;
    int32_t id = ids[token];
    if (id == kTokenOnDevice) {
      if (i == 0 || !verifies) id = args.slots.last_token[slot];  // others are drafts to come
    } else {
      record_fed(args.slots, slot, position, id);
    }
    in.token_ids[token] = id;
    in.positions[token] = position;
    const int64_t page = slot * args.max_blocks + position / args.block_size;
    for (int32_t group = 0; group < args.num_paged; ++group) {
      const PagedInputs& paged = args.paged[group];
      paged.kv_slots[token] =
          int64_t{paged.block_table[page]} * args.block_size + position % args.block_size;
    }
  }
  if (args.slots.history != nullptr && !verifies) {
    std::copy_n(in.token_ids + token - count, count,
                args.slots.history + slot * args.slots.history_cols + context);
    args.slots.history_range[2 * slot + 1] = context + count;
    if ((flags & kRowContinues) != 0) {
      args.slots.history[slot * args.slots.history_cols + context + count] =
          part<int32_t>(args, args.layout.row_next)[row];
    }
  }
  in.query_start[row + 1] = token;
  in.seq_lens[row] = context + count;
  in.row_slot[row] = static_cast<int32_t>(slot);
  in.row_flags[row] = flags;
  if (in.sample_start == nullptr) {
    in.logit_index[row] = std::max(token - 1, 0);
  } else {
    fill_samples(in, row, verifies ? count : 1);
  }
  return token;
}

void pad(const PrepareInputsArgs& args, int32_t live_tokens, int32_t live_reqs) {
  const BatchInputs& in = args.inputs;
  for (int32_t t = live_tokens; t < args.tokens; ++t) {
    in.token_ids[t] = 0;
    in.positions[t] = 0;
    for (int32_t group = 0; group < args.num_paged; ++group) args.paged[group].kv_slots[t] = 0;
  }
  for (int32_t r = live_reqs; r < args.reqs; ++r) {
    in.query_start[r + 1] = live_tokens;
    in.seq_lens[r] = args.padded_seq_len;
    in.row_slot[r] = args.slots.num_slots;
    in.row_flags[r] = 0;
    if (in.sample_start == nullptr) in.logit_index[r] = 0;
  }
  if (in.sample_start == nullptr) return;
  const int32_t live_samples = in.sample_start[live_reqs];
  std::fill(in.sample_start + live_reqs + 1, in.sample_start + args.reqs + 1, live_samples);
  for (int32_t i = live_samples; i < args.samples; ++i) {
    in.sample_slot[i] = args.slots.num_slots;
    in.sample_flags[i] = 0;
    in.sample_lens[i] = args.padded_seq_len;
    in.logit_index[i] = 0;
  }
}

bool needs_logits(const PrepareInputsArgs& args, int32_t live_reqs) {
  for (int32_t row = 0; row < live_reqs; ++row) {
    const bool samples = (args.inputs.row_flags[row] & kRowSamples) != 0;
    if (samples && !is_plain_greedy(args.slots.params[args.inputs.row_slot[row]])) return true;
  }
  return false;
}

void prepare_inputs(const PrepareInputsArgs& args, const Team& team) {
  if (team.rank != 0) return;
  ++*args.inputs.turn;
  const auto& header = *part<StepHeader>(args, args.layout.header);
  apply_parameters(args, header.num_slot_updates);
  apply_block_updates(args, header.num_block_updates);
  *args.inputs.live_tokens = header.num_tokens;
  *args.inputs.live_reqs = header.num_reqs;
  args.inputs.query_start[0] = 0;
  if (args.inputs.sample_start != nullptr) args.inputs.sample_start[0] = 0;
  int32_t token = 0;
  for (int32_t row = 0; row < header.num_reqs; ++row) token = fill_row(args, row, token);
  pad(args, header.num_tokens, header.num_reqs);
  const bool logits = header.keep_logits != 0 || needs_logits(args, header.num_reqs);
  int32_t samples = header.num_reqs;
  if (args.inputs.sample_start != nullptr)
    *args.inputs.live_samples = samples = args.inputs.sample_start[header.num_reqs];
  if (args.inputs.live_logits != nullptr) *args.inputs.live_logits = logits ? samples : 0;
  *args.inputs.turn = header.turn;
}

}  // namespace

void launch_prepare_inputs(StreamRef stream, const PrepareInputsArgs& args) {
  launch<&prepare_inputs>(stream, args, "prepare_inputs", true);
}

}  // namespace refrain::kernels
