#include "kernels/host/drafts.h"

#include <algorithm>
#include <span>

#include "kernels/host/launcher.h"
#include "kernels/host/sampling.h"

namespace refrain::kernels {
namespace {

// Where the tokens go on that followed the latest of the longest earlier occurrences of the last
// ones; -1: there is none of at least `least` tokens.
int32_t find_continuation(const int32_t* tokens, int32_t begin, int32_t end, int32_t least,
                          int32_t most) {
  int32_t best = 0, found = -1;
  for (int32_t at = begin + 1; at < end; ++at) {  // the occurrence would end before `at`
    int32_t length = 0;
    while (length < most && at - 1 - length >= begin &&
           tokens[at - 1 - length] == tokens[end - 1 - length])
      ++length;
    if (length >= std::max(best, least)) {
      best = length;
      found = at;
    }
  }
  return found;
}

// The drafts of a row, all of them its first token to begin with; none: it takes no drafts, or they
// have been put in, since a grammar forces them.
template <class Args>
std::span<int32_t> drafts_to_make(const Args& args, const SlotParams* params, int32_t most,
                                  int32_t row) {
  const int32_t first = args.inputs.query_start[row], end = args.inputs.query_start[row + 1];
  std::copy(args.ids + first, args.ids + end, args.out + first);
  args.num_drafts[row] = 0;
  const uint8_t flags = args.inputs.row_flags[row];
  if ((flags & kRowVerifies) == 0 || end - first < 2) return {};
  const std::span<int32_t> drafts(args.out + first + 1, args.out + end);
  std::ranges::fill(drafts, args.ids[first]);
  if ((flags & kRowNoDrafts) != 0) return {};
  if (params[args.inputs.row_slot[row]].follows_grammar == 0) return drafts;
  const uint32_t turn = *args.inputs.turn;
  const GrammarDraftInputs& grammar = args.grammar[turn % kTurns];
  if (!wait_for_grammar(grammar.ready + row, turn)) return {};
  const int32_t* forced = grammar.tokens + int64_t{row} * most;
  int32_t& count = args.num_drafts[row];
  for (; count < std::min<int64_t>(most, std::ssize(drafts)) && forced[count] >= 0; ++count)
    drafts[static_cast<size_t>(count)] = forced[count];
  return {};
}

void propose(const ProposeNgramArgs& args, int32_t row) {
  const std::span<int32_t> drafts = drafts_to_make(args, args.slots.params, args.most_drafts, row);
  if (drafts.empty()) return;
  const int64_t slot = args.inputs.row_slot[row];
  const int32_t* tokens = args.slots.history + slot * args.slots.history_cols;
  const int32_t* range = args.slots.history_range + 2 * slot;
  const int32_t from = find_continuation(tokens, range[0], range[1], args.least, args.most);
  if (from < 0) return;
  const int32_t period = range[1] - from;  // then they repeat
  for (int32_t i = 0; i < std::ssize(drafts); ++i)
    drafts[static_cast<size_t>(i)] = tokens[from + i % period];
  args.num_drafts[row] = static_cast<int32_t>(drafts.size());
}

void propose_ngram(const ProposeNgramArgs& args, const Team& team) {
  const int32_t live = live_rows(args.rows);
  const Range rows = share_of(live, team);
  for (int64_t row = rows.begin; row < rows.end; ++row) propose(args, static_cast<int32_t>(row));
  if (team.rank != 0) return;
  std::fill(args.out + args.inputs.query_start[live], args.out + args.tokens.padded, 0);
}

void propose_kept(const ProposeDraftsArgs& args, int32_t row) {
  const std::span<int32_t> drafts = drafts_to_make(args, args.params, args.most, row);
  const int64_t slot = args.inputs.row_slot[row];
  int32_t& good = args.num_drafts[row];
  for (; good < std::min<int64_t>(args.most, std::ssize(drafts)); ++good) {
    const int32_t token =
        good + 1 < args.most ? args.drafts[slot * args.most + good] : args.draft_token[slot];
    if (token < 0) return;
    drafts[static_cast<size_t>(good)] = token;
  }
}

void propose_drafts(const ProposeDraftsArgs& args, const Team& team) {
  const int32_t live = live_rows(args.rows);
  const Range rows = share_of(live, team);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    propose_kept(args, static_cast<int32_t>(row));
  if (team.rank != 0) return;
  std::fill(args.out + args.inputs.query_start[live], args.out + args.tokens.padded, 0);
}

void draft_inputs(const DraftInputsArgs& args, const Team& team) {
  const int32_t live = live_rows(args.rows);
  const DraftInputsArgs::Out& out = args.out;
  const Range rows = share_of(args.rows.padded, team);
  if (team.rank == 0) {
    out.query_start[0] = 0;
    if (out.live_logits != nullptr) *out.live_logits = *args.step_live_logits > 0 ? live : 0;
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    out.query_start[row + 1] = static_cast<int32_t>(std::min<int64_t>(row + 1, live));
    out.token_ids[row] = out.positions[row] = 0;
    out.kv_slots[row] = 0;
    out.seq_lens[row] = args.padded_seq_len;
    out.row_slot[row] = args.num_slots;
    out.row_flags[row] = 0;
    if (out.hidden_index != nullptr) out.hidden_index[row] = 0;
    if (out.sample_lens != nullptr) out.sample_lens[row] = args.padded_seq_len;
    if (row >= live || (args.row_flags[row] & kRowSamples) == 0) continue;
    const int64_t slot = args.row_slot[row];
    const int32_t token = args.token[slot];
    if (args.ahead > 0) args.drafts[slot * args.most + args.ahead - 1] = token;
    const int32_t end = args.history_range[2 * slot + 1];
    const int32_t position = end - 1 - args.back + args.ahead;
    if (token < 0 || position < 0 || position >= args.max_blocks * args.block_size ||
        args.params[slot].uses_history != 0 || args.params[slot].follows_grammar != 0)
      continue;
    const int32_t block = args.block_table[slot * args.max_blocks + position / args.block_size];
    out.token_ids[row] = token;
    out.positions[row] = position;
    out.kv_slots[row] = int64_t{block} * args.block_size + position % args.block_size;
    out.seq_lens[row] = position + 1;
    out.row_slot[row] = static_cast<int32_t>(slot);
    out.row_flags[row] = kRowSamples;
    if (out.sample_lens != nullptr) out.sample_lens[row] = position + args.back + 1;
    if (out.hidden_index == nullptr) continue;
    const int32_t first = args.query_start[row], last = args.query_start[row + 1] - 1;
    out.hidden_index[row] = std::clamp(first + end - 2 - args.positions[first], first, last);
  }
}

// The slot's next token.
void append(const AcceptDraftsArgs& args, int64_t slot, int32_t token) {
  const SlotState& slots = args.slots;
  int32_t& end = slots.history_range[2 * slot + 1];
  if (end < slots.history_cols) slots.history[slot * slots.history_cols + end++] = token;
  slots.last_token[slot] = token;
  if (token >= 0 && slots.output_count != nullptr && slots.params[slot].uses_history != 0)
    ++slots.output_count[slot * slots.vocab_size + token];
}

void accept_drafts(const AcceptDraftsArgs& args, const Team& team) {
  const uint32_t turn = *args.inputs.turn % kTurns;
  const AcceptOutputs& out = args.outputs[turn];
  const int32_t live = live_rows(args.rows);
  const Range rows = share_of(args.rows.padded, team);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    out.accepted[row] = out.drafted[row] = 0;
    if (row >= live || (args.inputs.row_flags[row] & kRowSamples) == 0) continue;
    const int64_t slot = args.inputs.row_slot[row];
    const int32_t* sampled = args.tokens[turn] + args.inputs.sample_start[row];
    const int32_t* drafts = args.ids + args.inputs.query_start[row] + 1;
    const int32_t proposed = args.num_drafts[row];
    const int32_t end = args.slots.history_range[2 * slot + 1];
    const auto right = [&](int32_t i) {
      return args.synthetic < 0 ? sampled[i] == drafts[i]
                                : right_by_chance(args.synthetic, slot, end + i);
    };
    int32_t count = 0;
    do {
      append(args, slot, sampled[count]);
    } while (count++ < proposed && right(count - 1));
    out.accepted[row] = count;
    out.drafted[row] = proposed;
  }
}

}  // namespace

void launch_propose_ngram(StreamRef stream, const ProposeNgramArgs& args) {
  launch<&propose_ngram>(stream, args, "propose_ngram", args.rows.padded == 1);
}

void launch_propose_drafts(StreamRef stream, const ProposeDraftsArgs& args) {
  launch<&propose_drafts>(stream, args, "propose_drafts", args.rows.padded == 1);
}

void launch_draft_inputs(StreamRef stream, const DraftInputsArgs& args) {
  launch<&draft_inputs>(stream, args, "draft_inputs", args.rows.padded == 1);
}

void launch_accept_drafts(StreamRef stream, const AcceptDraftsArgs& args) {
  launch<&accept_drafts>(stream, args, "accept_drafts", args.rows.padded == 1);
}

}  // namespace refrain::kernels
