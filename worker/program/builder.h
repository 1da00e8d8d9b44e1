#pragma once
// Writes a Program down, op by op: model files (worker/models) call it in the order of the
// computation. Names of weights are the checkpoint's tensor names. Used once, then finish().

#include <string>
#include <unordered_map>

#include "worker/program/program.h"

namespace refrain::worker {

// Geometry of one attention layer.
struct AttentionShape {
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0, sliding_window = 0;
  float scale = 1.0f;
};

class ProgramBuilder {
 public:
  ProgramBuilder(std::string name, DType activation_dtype, DType weight_dtype);

  // Values. A weight asked for twice under one name is one value (tied embeddings).
  ValueId input(const std::string& name, DType dtype, Dim rows);
  ValueId matrix(const std::string& tensor, int64_t rows, int64_t cols,
                 SplitUnit unit = SplitUnit::kNone);
  ValueId vector(const std::string& tensor, int64_t size, SplitUnit unit = SplitUnit::kNone);
  ValueId rope_table(int64_t positions, int64_t rotary_dim);
  ValueId kv_cache(int layer, const AttentionShape& shape, DType dtype);

  // Ops; each returns the value it defines, named `name`.
  void prepare_inputs();
  ValueId embed(const std::string& name, ValueId ids, ValueId table);
  ValueId rms_norm(const std::string& name, ValueId in, ValueId weight, double eps,
                   int64_t group = 0);
  ValueId add(const std::string& name, ValueId residual, ValueId delta);
  ValueId linear(const std::string& name, ValueId in, ValueId weight, ValueId bias,
                 Parallel parallel, SplitUnit unit);
  // Float32, kOutput: [R, vocab].
  ValueId lm_head(ValueId in, ValueId table);
  ValueId silu_gate(const std::string& name, ValueId gate, ValueId up);
  ValueId rope(const std::string& name, ValueId in, ValueId positions, ValueId table, int64_t heads,
               const AttentionShape& shape);
  void kv_write(ValueId k, ValueId v, ValueId kv_slots, ValueId cache, const AttentionShape& shape);
  ValueId attention(const std::string& name, ValueId q, ValueId cache, int layer,
                    const AttentionShape& shape);
  ValueId select_rows(const std::string& name, ValueId in, ValueId index);
  void sample(ValueId logits);

  Program finish(int64_t vocab_size, int64_t max_positions);

 private:
  ValueId define(Value value);
  ValueId activation(const std::string& name, Dim rows, int64_t cols);
  ValueId weight(const std::string& tensor, int64_t rows, int64_t cols, WeightUse use,
                 SplitUnit unit);
  Dim rows_of(ValueId id) const { return program_.value(id).rows; }

  Program program_;
  DType activation_dtype_;
  DType weight_dtype_;
  std::unordered_map<std::string, ValueId> weights_;
};

}  // namespace refrain::worker
