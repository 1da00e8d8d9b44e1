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

void apply_parameters(const PrepareInputsArgs& args, int32_t count) {
  const auto* slot_of = part<int32_t>(args, args.layout.params_slot);
  const auto* params = part<SlotParams>(args, args.layout.params);
  const int64_t vocab = args.slots.vocab_size;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t slot = slot_of[i];
    args.slots.params[slot] = params[i];
    if (!keeps_history(args.slots, slot)) continue;
    std::fill_n(args.slots.output_count + slot * vocab, vocab, 0);
    std::fill_n(args.slots.in_prompt + slot * vocab, vocab, uint8_t{0});
  }
}

void apply_block_updates(const PrepareInputsArgs& args, int32_t count) {
  const auto* slot = part<int32_t>(args, args.layout.update_slot);
  const auto* index = part<int32_t>(args, args.layout.update_index);
  const auto* block = part<int32_t>(args, args.layout.update_block);
  for (int32_t i = 0; i < count; ++i) {
    args.slots.block_table[int64_t{slot[i]} * args.slots.max_blocks + index[i]] = block[i];
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

// Fills the tokens of row `row` from `token` on; returns the next row's first token.
int32_t fill_row(const PrepareInputsArgs& args, int32_t row, int32_t token) {
  const auto* ids = part<int32_t>(args, args.layout.token_ids);
  const int64_t slot = part<int32_t>(args, args.layout.row_slot)[row];
  const int32_t context = part<int32_t>(args, args.layout.row_context)[row];
  const int32_t count = part<int32_t>(args, args.layout.row_query_len)[row];
  const BatchInputs& in = args.inputs;
  const int32_t* blocks = args.slots.block_table + slot * args.slots.max_blocks;
  for (int32_t i = 0; i < count; ++i, ++token) {
    const int32_t position = context + i;
    int32_t id = ids[token];
    if (id == kTokenOnDevice) {
      id = args.slots.last_token[slot];
    } else {
      record_fed(args.slots, slot, position, id);
    }
    in.token_ids[token] = id;
    in.positions[token] = position;
    in.kv_slots[token] =
        int64_t{blocks[position / args.block_size]} * args.block_size + position % args.block_size;
  }
  in.query_start[row + 1] = token;
  in.seq_lens[row] = context + count;
  in.row_slot[row] = static_cast<int32_t>(slot);
  in.logit_index[row] = std::max(token - 1, 0);
  in.row_flags[row] = part<uint8_t>(args, args.layout.row_flags)[row];
  return token;
}

void pad(const PrepareInputsArgs& args, int32_t live_tokens, int32_t live_reqs) {
  const BatchInputs& in = args.inputs;
  for (int32_t t = live_tokens; t < args.tokens; ++t) {
    in.token_ids[t] = 0;
    in.positions[t] = 0;
    in.kv_slots[t] = 0;
  }
  for (int32_t r = live_reqs; r < args.reqs; ++r) {
    in.query_start[r + 1] = live_tokens;
    in.seq_lens[r] = args.padded_seq_len;
    in.row_slot[r] = args.slots.num_slots;
    in.logit_index[r] = 0;
    in.row_flags[r] = 0;
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
  int32_t token = 0;
  for (int32_t row = 0; row < header.num_reqs; ++row) token = fill_row(args, row, token);
  pad(args, header.num_tokens, header.num_reqs);
  const bool logits = header.keep_logits != 0 || needs_logits(args, header.num_reqs);
  if (args.inputs.live_logits != nullptr) *args.inputs.live_logits = logits ? header.num_reqs : 0;
  *args.inputs.turn = header.turn;
}

}  // namespace

void launch_prepare_inputs(StreamRef stream, const PrepareInputsArgs& args) {
  launch<&prepare_inputs>(stream, args, "prepare_inputs", true);
}

}  // namespace refrain::kernels
