#pragma once
// What a step's kernels read and write besides weights and activations. Three groups of memory:
//  StepBlock   what the coordinator decided: pinned memory, read by prepare_inputs;
//  SlotState   per request, lives on the device from step to step (addresses never change);
//  BatchInputs per step, written on the device by prepare_inputs from the two above.
// A turn is one run of prepare_inputs … sample. Turns are counted from 1; even and odd ones have a
// step block and outputs each, in pinned memory, so that the host may fill and read those of one
// turn while the device is at the other.
// Sizes: S slots (max_num_seqs) plus one reserved slot S for padded rows, T tokens, R rows.

#include <cstddef>
#include <cstdint>

namespace refrain::kernels {

inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxLogitBias = 300;
inline constexpr int kMaxPagedGroups = 4;  // of a Program: each has a block table
inline constexpr uint32_t kTurns = 2;      // that have memory of their own: turn t uses t % kTurns

// What the coordinator says of a row (a request taking part in the step).
enum RowFlags : uint8_t {
  kRowSamples = 1,     // the last token of this row gives logits and a sampled token
  kRowVerifies = 2,    // so does every token of it: the slot's last one, then drafts made
                       // on the device; it begins where the slot is, not at row_context
  kRowNoDrafts = 4,    // of a row that verifies: none of its drafts is accepted
  kRowContinues = 16,  // the token after its last one is StepLayout::row_next
};

// Sampling parameters of a slot; plain, so that it can be copied as bytes.
struct SlotParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output tokens
  float presence_penalty = 0.0f;    // over output tokens
  float frequency_penalty = 0.0f;   // over output tokens
  int32_t top_k = 0;                // 0: off
  int32_t num_logprobs = -1;        // -1: none; 0: the sampled token's only; n: top n as well
  int32_t prompt_len = 0;           // tokens at positions below it are prompt
  int32_t num_logit_bias = 0;       // entries used in SlotState::bias_*
  int32_t has_allowed_mask = 0;     // 1: only tokens whose bit is set in SlotState::allowed_mask
  int32_t follows_grammar = 0;      // 1: in GrammarMaskInputs instead
  int32_t uses_history = 0;         // 1: any penalty is on, so token history is kept
  int32_t adapter = -1;             // place of the request's LoRA adapter; -1: none
  uint64_t seed = 0;                // random state: (seed, position of the sampled token)
};

inline constexpr float kGreedyTemperature = 1e-5f;  // at or below: greedy, as in vLLM

// Whether the token is chosen by other logits than the model's.
constexpr bool changes_logits(const SlotParams& params) {
  return params.has_allowed_mask != 0 || params.num_logit_bias != 0 || params.uses_history != 0;
}

// Whether the row's token is that of the greatest logit, and nothing else is asked.
constexpr bool is_plain_greedy(const SlotParams& params) {
  return params.temperature <= kGreedyTemperature && params.num_logprobs < 0 &&
         !changes_logits(params);
}

struct StepHeader {
  int32_t num_tokens = 0;                           // live tokens
  int32_t num_reqs = 0;                             // live rows
  int32_t num_block_updates[kMaxPagedGroups] = {};  // those of a group after those before it
  int32_t num_slot_updates = 0;
  uint32_t turn = 0;        // that the block is for
  int32_t keep_logits = 0;  // 1: every rank is given all logits, whether a row needs them or not
  int32_t num_history = 0;  // entries used in StepLayout::history
  uint32_t step = 0;        // the step's number, or its low bits (layer_flag.h)
};

// Offsets in bytes into the step block. Fixed when the worker starts.
struct StepLayout {
  int32_t max_tokens = 0;
  int32_t max_reqs = 0;
  int32_t max_block_updates = 0;
  size_t header = 0;         // StepHeader
  size_t token_ids = 0;      // int32 [T]; kTokenOnDevice: the slot's last sampled token
  size_t row_slot = 0;       // int32 [R]
  size_t row_query_len = 0;  // int32 [R]
  size_t row_context = 0;    // int32 [R] tokens already in the KV cache
  size_t row_flags = 0;      // uint8 [R]
  size_t update_slot = 0;    // int32 [U] block-table updates: slot, index in its table, block
  size_t update_index = 0;   // int32 [U]
  size_t update_block = 0;   // int32 [U]
  size_t params_slot = 0;    // int32 [R] slots whose parameters are new: reset history, set params
  size_t params = 0;         // SlotParams [R]
  // With speculation: the tokens that such a slot begins with and no row will bring.
  int32_t max_history = 0;
  size_t history_part = 0;  // int32 [R, 2]: the position of the first, how many
  size_t row_next = 0;      // int32 [R] of rows that continue
  size_t history = 0;       // int32 [max_history], one slot's after the other's
  size_t total = 0;
};

// max_history 0: no speculation.
StepLayout make_step_layout(int max_tokens, int max_reqs, int max_block_updates,
                            int max_history = 0);

// Device-resident, one row a slot, S + 1 rows. The history buffers may be null when no request may
// use penalties.
struct SlotState {
  int32_t num_slots = 0;  // S
  int32_t vocab_size = 0;
  int32_t* last_token = nullptr;     // [S+1]
  SlotParams* params = nullptr;      // [S+1]
  int32_t* output_count = nullptr;   // [S+1, vocab] times a token was generated
  uint8_t* in_prompt = nullptr;      // [S+1, vocab] 1: the token is in the prompt
  int32_t* bias_token = nullptr;     // [S+1, kMaxLogitBias]
  float* bias_value = nullptr;       // [S+1, kMaxLogitBias]
  uint32_t* allowed_mask = nullptr;  // [S+1, ceil(vocab / 32)]
  // With speculation, else null: the request's tokens by position, and which of them are known.
  int32_t history_cols = 0;
  int32_t* history = nullptr;        // [S+1, history_cols]
  int32_t* history_range = nullptr;  // [S+1, 2]: first position, one past the last
};

// Device-resident, rewritten by prepare_inputs every step. Beyond the live counts: padded tokens
// have token 0, position 0, KV slot 0 (the reserved block); padded rows have slot S, no
// tokens, seq_len = the fill value, logit_index 0.
struct BatchInputs {
  uint32_t* turn = nullptr;        // [1] of the block read last; kernels take the next one's
  int32_t* live_tokens = nullptr;  // [1]
  int32_t* live_reqs = nullptr;    // [1]
  int32_t* live_logits = nullptr;  // [1] live_reqs where a rank needs other ranks' logits, else 0
  int32_t* token_ids = nullptr;    // [T]
  int32_t* positions = nullptr;    // [T]
  int32_t* query_start = nullptr;  // [R+1]
  int32_t* seq_lens = nullptr;     // [R] context + new tokens
  int32_t* row_slot = nullptr;     // [R]
  int32_t* logit_index = nullptr;  // [R] token whose hidden state gives the row's logits
  uint8_t* row_flags = nullptr;    // [R]
  // With speculation, else null. N logit rows: one a row, one a token of a row that verifies; then
  // logit_index is [N]. Padded ones have slot S and no flags.
  int32_t* live_samples = nullptr;  // [1]
  int32_t* sample_start = nullptr;  // [R+1] first logit row of each row
  int32_t* sample_slot = nullptr;   // [N]
  int32_t* sample_lens = nullptr;   // [N] tokens up to and with the one that gives the logits
  uint8_t* sample_flags = nullptr;  // [N]
};

// Where a step's tokens are kept by a paged state group, through its block table.
struct PagedInputs {
  int32_t* block_table = nullptr;  // [S+1, max_blocks] of the slots
  int64_t* kv_slots = nullptr;     // [T] block * block_size + offset, by prepare_inputs
};

// Pinned memory of a turn, of the rows of logits. The host makes a mask while the step's forward
// pass runs, since it follows from the tokens before; sample waits for it, for
// kGrammarPatienceSeconds at most.
struct GrammarMaskInputs {
  const uint32_t* mask = nullptr;   // [N, ceil(vocab / 32)]
  const uint32_t* ready = nullptr;  // [N] the turn that the row's mask is for, set after it
};

// Pinned memory of a turn, of the rows that verify and follow a grammar: the text that the grammar
// forces, as tokens. They are the row's drafts, whatever else makes drafts. propose_* waits for
// them, as sample for masks; it needs those that know the tokens before.
struct GrammarDraftInputs {
  const int32_t* tokens = nullptr;  // [R, most]; -1 behind the last
  const uint32_t* ready = nullptr;  // [R]
};

inline constexpr int kGrammarPatienceSeconds = 60;  // then no token is allowed, no draft proposed

// Pinned memory, written by sample, read by the host after the step. Rows that do not sample hold
// token -1.
struct SampleOutputs {
  uint32_t* turn = nullptr;       // [1] as in the step block
  int32_t* tokens = nullptr;      // [R]
  float* logprobs = nullptr;      // [R] of the model's own logits, like the top ones
  int32_t* top_tokens = nullptr;  // [R, kMaxLogprobs]
  float* top_logprobs = nullptr;  // [R, kMaxLogprobs]
};

// Pinned memory, written by accept_drafts.
struct AcceptOutputs {
  int32_t* accepted = nullptr;  // [R] sampled tokens of the row that are taken, from its first on
  int32_t* drafted = nullptr;   // [R] drafts that were proposed for it
};

}  // namespace refrain::kernels
