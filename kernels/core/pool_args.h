#pragma once
// Arguments of the op that turns a prompt's hidden states into one vector (op_args.h).

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

enum class Pooling : uint8_t { kLast, kMean, kFirst };

struct PoolOutputs {
  uint32_t* turn = nullptr;  // [1] as in SampleOutputs
  float* pooled = nullptr;   // [R, cols]
};

// Of each row that samples, which is one that ends its prompt: the hidden state of the prompt's
// last token, the mean over its tokens, or that of its first. A prompt may come in chunks, so the
// sum so far, or the first state, is kept in the slot; position 0 begins it anew.
struct PoolArgs {
  Matrix in;                    // [T, cols]
  float* state = nullptr;       // [S+1, cols] of the slots; null: kLast
  BatchInputs inputs;           // turn, query_start, seq_lens, row_slot, row_flags
  PoolOutputs outputs[kTurns];  // those of inputs.turn are written
  Pooling pooling = Pooling::kLast;
  int32_t cols = 0;
  Rows reqs;
};

}  // namespace refrain::kernels
