#pragma once
// The form of a Program for batches with LoRA adapters, and where an adapter's tensors go in it.
// Pure; any thread.

#include <string>
#include <vector>

#include "worker/program/program.h"

namespace refrain::worker {

struct LoraLimits {
  int32_t places = 0;  // adapters of a step at most (--max-loras)
  int32_t max_rank = 0;
};

// One linear or embedding of the checkpoint, as an adapter's pair of matrices changes it.
struct LoraTarget {
  std::string module;                              // "model.layers.0.self_attn.q_proj"
  int64_t rows, cols;                              // of b · a
  int64_t row_begin, row_end, col_begin, col_end;  // what this rank has of it
  ValueId a, b;                                    // of the linear that it is a part of
  int64_t a_row;                                   // first row of the part in a place of `a`
  int64_t b_begin, b_rows;  // rows of the part in `b`; the last ones may be padding
  int32_t rank_column;      // its column of `ranks`
  // An embedding: `a` has a column for each token, kept one after the other.
  bool by_token = false;
  WeightPart weight;        // what is changed, as this rank has it
  ValueId norm = kNoValue;  // whose weight `a` is times too, as the linear's is (fold_norms)
};

struct LoraProgram {
  Program program;  // values keep their ids; new ones stand behind them
  ValueId ranks = kNoValue;
  std::vector<LoraTarget> targets;
};

// Behind the embedding and each linear that adapters may change: what a row's adapter adds to it.
// Of a sharded Program: a column-parallel linear has its rows of B and all of A, a row-parallel one
// its columns of A and all of B, so that a sum over ranks holds the adapters' parts and no exchange
// is new. The head has the rows of B of the rank's vocabulary, whether or not it shares the
// embeddings' table: an adapter's part is added to the logits and changes no weight.
LoraProgram add_lora(Program program, const LoraLimits& limits);

// The last part of a layer's modules that adapters may change: "q_proj", …
const std::vector<std::string>& lora_targets();

}  // namespace refrain::worker
