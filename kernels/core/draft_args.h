#pragma once
// Arguments of the ops of speculation: making drafts, keeping those that are right, and what a
// draft head has besides a model (op_args.h).

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

// Prompt lookup: the drafts of a row that verifies are the tokens that followed the latest of the
// longest earlier occurrences of its last `most` to `least` tokens; where they reach the end they
// go on with themselves. out = ids with the drafts put in; num_drafts = 0 where nothing was found,
// and the row's drafts are then its last token, never accepted.
struct ProposeNgramArgs {
  const int32_t* ids = nullptr;   // [T]
  int32_t* out = nullptr;         // [T]
  int32_t* num_drafts = nullptr;  // [R]
  BatchInputs inputs;             // turn, query_start, row_slot, row_flags
  SlotState slots;                // params, history
  GrammarDraftInputs grammar[kTurns];
  int32_t most_drafts = 0;  // of a row
  int32_t least = 1, most = 1;
  Rows tokens, rows;
};

// The same of drafts that were made before: those that a draft model left in the slots.
struct ProposeDraftsArgs {
  const int32_t* ids = nullptr;          // [T]
  int32_t* out = nullptr;                // [T]
  int32_t* num_drafts = nullptr;         // [R] up to the first that is no token
  const int32_t* drafts = nullptr;       // [S+1, most] of the slots, but for the last one:
  const int32_t* draft_token = nullptr;  // [S+1]
  int32_t most = 0;                      // drafts of a slot, and of a row
  BatchInputs inputs;                    // turn, query_start, row_slot, row_flags
  const SlotParams* params = nullptr;    // [S+1]
  GrammarDraftInputs grammar[kTurns];
  Rows tokens, rows;
};

// What a draft model reads for its next token: of each row that sampled, one token at the position
// after what is known of the slot, `ahead` drafts further on. Rows that take no drafts, and those
// that have reached the end of their block table, are as padded ones. A draft head keeps a token in
// the place before its own (`back` 1), beside the hidden state of the token there.
struct DraftInputsArgs {
  // Of the slots.
  const int32_t* token = nullptr;          // [S+1] last_token, or the draft before
  const int32_t* history_range = nullptr;  // [S+1, 2]
  const SlotParams* params = nullptr;      // [S+1]
  const int32_t* block_table = nullptr;    // [S+1, max_blocks]
  int32_t* drafts = nullptr;               // [S+1, most] draft `ahead` - 1 is kept
  int32_t num_slots = 0, max_blocks = 0, most = 0;
  // Of the step.
  const int32_t* row_slot = nullptr;          // [R]
  const uint8_t* row_flags = nullptr;         // [R]
  const int32_t* step_live_logits = nullptr;  // [1]
  const int32_t* positions = nullptr;         // [T] and
  const int32_t* query_start = nullptr;       // [R+1]: with out.hidden_index
  struct Out {
    int32_t* token_ids = nullptr;    // [R]
    int32_t* positions = nullptr;    // [R]
    int64_t* kv_slots = nullptr;     // [R]
    int32_t* query_start = nullptr;  // [R+1]
    int32_t* seq_lens = nullptr;     // [R]
    int32_t* row_slot = nullptr;     // [R]
    uint8_t* row_flags = nullptr;    // [R]
    int32_t* live_logits = nullptr;  // [1] or null
    // Of a draft head, or null: the step's token before the slot's last one; tokens up to the one
    // that the sampled token follows.
    int32_t* hidden_index = nullptr;  // [R]
    int32_t* sample_lens = nullptr;   // [R]
  } out;
  int32_t ahead = 0, back = 0, block_size = 0, padded_seq_len = 0;
  Rows rows;
};

// The token after each of the step's, as far as the slot knows it: the tokens that a draft head
// reads beside the hidden states of those. After a draft that was wrong it is any.
struct NextTokensArgs {
  const int32_t* positions = nullptr;    // [T]
  const int32_t* query_start = nullptr;  // [R+1]
  const int32_t* row_slot = nullptr;     // [R]
  const int32_t* history = nullptr;      // [S+1, history_cols] of the slots
  int32_t history_cols = 0;
  int32_t* out = nullptr;  // [T]
  Rows tokens, rows;
};

// What is kept of a step's sampled tokens: of a row that verifies, those before the first that is
// not the draft after it, and that one; of others, the one. They become the slot's last tokens.
struct AcceptDraftsArgs {
  const int32_t* tokens[kTurns] = {};   // SampleOutputs::tokens
  const int32_t* ids = nullptr;         // [T] as propose_ngram left them
  const int32_t* num_drafts = nullptr;  // [R]
  BatchInputs inputs;                   // turn, query_start, row_slot, row_flags, sample_start
  SlotState slots;                      // last_token, output_count, history are updated
  AcceptOutputs outputs[kTurns];
  // Measurements: a draft counts as right with this chance, of 2^32, whatever it says; -1: by what
  // it says.
  int64_t synthetic = -1;
  Rows rows;
};

// Whether the draft for the slot's token at that position counts as right. Pure; host and device.
constexpr bool right_by_chance(int64_t chance, int64_t slot, int32_t position) {
  uint64_t word = static_cast<uint64_t>(slot) << 32 | static_cast<uint32_t>(position);
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ULL;  // SplitMix64's last steps
  word = (word ^ word >> 27) * 0x94d049bb133111ebULL;
  return static_cast<int64_t>((word ^ word >> 31) >> 32) < chance;
}

// out[r, :] = parts[0][r, :] | parts[1][r, :] | …, all of one element type.
inline constexpr int32_t kMaxParts = 3;
struct ConcatArgs {
  Matrix parts[kMaxParts];
  int32_t cols[kMaxParts] = {};  // of each part; 0: it is not there
  Matrix out;                    // [T, sum of cols]
  Rows rows;
};

// Logits of a vocabulary from those of a smaller one, whose token i is token i + offset[i] there;
// tokens that it lacks get -infinity.
struct MapLogitsArgs {
  Matrix in;                      // float32 [R, small]
  const float* offset = nullptr;  // [small] whole numbers
  Matrix out;                     // float32 [R, vocab]
  int32_t small = 0, vocab = 0;
  Rows rows;
};

}  // namespace refrain::kernels
