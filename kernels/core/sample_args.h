#pragma once
// Arguments of the ops that turn logits into tokens and log-probabilities (op_args.h).

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

// The greatest logit of each of kBestParts slices of a row, and its lowest token, for rows that
// sample and are plainly greedy; -inf and -1 where a slice has no number. Other rows of `best` are
// left as they are.
struct BestTokensArgs {
  Matrix logits;            // [R, cols] float32: this rank's part of the vocabulary
  int32_t first_token = 0;  // of column 0
  int32_t num_tokens = 0;   // columns that are tokens
  float* best = nullptr;    // [R, kBestParts, 2]: logit, token
  BatchInputs inputs;
  const SlotParams* params = nullptr;  // of the slots
  Rows rows;
};

// Penalties, bias, mask, temperature, top-k, top-p, min-p, one random draw per row, and
// log-probabilities: of the model's own logits, or of what the row draws from.
// Logits of rank i lie in shard i: [shards][R][shard_cols] float32; token = i * shard_cols +
// column.
struct SampleArgs {
  const float* logits = nullptr;
  int32_t shards = 1;
  int64_t shard_cols = 0;    // padded vocabulary columns a shard
  int64_t shard_stride = 0;  // elements from one shard to the next
  // [shards][R, best_parts, 2] of BestTokensArgs, or of a linear; then plainly greedy rows take
  // their token from here, and logits are there only when inputs.live_logits says so. Null: one
  // shard, and logits are always there.
  const float* best = nullptr;
  int32_t best_parts = 0;
  int32_t vocab_size = 0;
  bool tells_logits = false;  // outputs' logprobs are logits
  // They are of what the row draws from: after penalties, bias and mask, over the temperature (1 of
  // greedy rows), -inf where mask, top-k, top-p or min-p cut a token out. False: the model's own.
  bool tells_processed = false;
  BatchInputs inputs;
  SlotState slots;  // last_token and output_count are updated, unless last_token is null:
                    // accept_drafts does it
  GrammarMaskInputs grammar[kTurns];  // that of inputs.turn is read
  SampleOutputs outputs[kTurns];      // those of inputs.turn are written
  float* scratch = nullptr;           // [R, vocab_size]
  Rows rows;
};

struct ScoreOutputs {             // of ScoreTokensArgs
  float* logprobs = nullptr;      // [N]
  int32_t* ranks = nullptr;       // [N] how many tokens are as likely or likelier: 1 is the best
  int32_t* top_tokens = nullptr;  // [N, kMaxLogprobs] most likely first; -1: there are no more
  float* top_logprobs = nullptr;  // [N, kMaxLogprobs]
};

// How likely given tokens are: their log-probabilities, and those of the likeliest tokens. Logits
// lie as in SampleArgs. A row of logits that are no numbers gives NaN.
struct ScoreTokensArgs {
  const float* logits = nullptr;
  int32_t shards = 1;
  int64_t shard_cols = 0;
  int64_t shard_stride = 0;
  int32_t vocab_size = 0;
  const int32_t* tokens = nullptr;   // [N] one a row; -1: the row is passed over
  const int32_t* num_top = nullptr;  // [N] 0 to kMaxLogprobs
  ScoreOutputs outputs;
  int32_t rows = 0;
};

}  // namespace refrain::kernels
