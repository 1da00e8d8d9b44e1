#pragma once
// Writes a Program down, op by op: model files (worker/models) call it in the order of the
// computation. Names of weights are the checkpoint's tensor names. Used once, then finish().

#include <string>
#include <unordered_map>

#include "worker/program/program.h"

namespace refrain::worker {

// The most of a step and of a request that a Program is built for; tests that run none leave zeros.
struct BuildLimits {
  StepLimits step;
  int32_t max_blocks = 0;  // of one request's block table
};

// Geometry of one attention layer.
struct AttentionShape {
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0, sliding_window = 0;
  float scale = 1.0f;
};

class ProgramBuilder {
 public:
  // `limits` size the memory of the step's values: the slots' state, inputs and outputs.
  ProgramBuilder(std::string name, DType activation_dtype, DType weight_dtype, int64_t vocab_size,
                 const BuildLimits& limits = {});

  // Values. A weight asked for twice under one name is one value (tied embeddings).
  ValueId matrix(const std::string& tensor, int64_t rows, int64_t cols,
                 SplitUnit unit = SplitUnit::kNone);
  ValueId vector(const std::string& tensor, int64_t size, SplitUnit unit = SplitUnit::kNone);
  ValueId rope_table(int64_t positions, int64_t rotary_dim);
  ValueId kv_cache(int layer, const AttentionShape& shape, DType dtype);

  // The first op: token ids, positions and whatever else later ops read of the step. The reference
  // stays good until finish().
  const PrepareInputsOp& prepare_inputs();
  // Ops; each returns the value it defines, named `name`.
  ValueId embed(const std::string& name, ValueId ids, ValueId table);
  ValueId rms_norm(const std::string& name, ValueId in, ValueId weight, double eps,
                   int64_t group = 0);
  ValueId add(const std::string& name, ValueId residual, ValueId delta);
  ValueId linear(const std::string& name, ValueId in, ValueId weight, ValueId bias,
                 Parallel parallel, SplitUnit unit);
  // Float32, kOutput: [R, vocab].
  ValueId lm_head(ValueId in, ValueId table);
  ValueId silu_gate(const std::string& name, ValueId gate, ValueId up);
  ValueId rope(const std::string& name, ValueId in, ValueId table, int64_t heads,
               const AttentionShape& shape);
  void kv_write(ValueId k, ValueId v, ValueId cache, const AttentionShape& shape);
  ValueId attention(const std::string& name, ValueId q, ValueId cache, int layer,
                    const AttentionShape& shape);
  // The row of each request that gives its logits.
  ValueId select_rows(const std::string& name, ValueId in);
  void sample(ValueId logits);

  Program finish(int64_t max_positions);

 private:
  ValueId define(Value value);
  ValueId activation(const std::string& name, Dim rows, int64_t cols);
  ValueId input(const char* name, DType dtype, Dim rows);
  ValueId slot_state(const char* name, DType dtype, int64_t cols, bool zeroed = false);
  ValueId output(const char* name, DType dtype, Dim rows, int64_t cols = 1);
  ValueId weight(const std::string& tensor, int64_t rows, int64_t cols, WeightUse use,
                 SplitUnit unit);
  Dim rows_of(ValueId id) const { return program_.value(id).rows; }

  Program program_;
  DType activation_dtype_;
  DType weight_dtype_;
  BuildLimits limits_;
  PrepareInputsOp step_;
  std::unordered_map<std::string, ValueId> weights_;
};

}  // namespace refrain::worker
