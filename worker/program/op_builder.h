#pragma once
// The ops of a model: each function puts one behind the others and returns the value that it
// defines, by the name given. Used by model files (worker/models); the ProgramBuilder outlives it.

#include <string>
#include <vector>

#include "worker/program/builder.h"

namespace refrain::worker {

// Where ops belong: what they read of the step, and how their values' names begin.
struct OpScope {
  PrepareInputsOp step;
  std::string prefix = {};
};

class OpBuilder {
 public:
  explicit OpBuilder(ProgramBuilder& builder) : builder_(builder) {}

  // Ops belong there from here on: to the step, or to one of a draft model's passes.
  void begin(OpScope scope) { scope_ = std::move(scope); }

  ValueId embed(const std::string& name, ValueId ids, ValueId table);
  ValueId rms_norm(const std::string& name, ValueId in, ValueId weight, double eps,
                   int64_t group = 0);
  ValueId add(const std::string& name, ValueId residual, ValueId delta);
  ValueId linear(const std::string& name, ValueId in, ValueId weight, ValueId bias,
                 Parallel parallel, SplitUnit unit);
  ValueId silu_gate(const std::string& name, ValueId gate, ValueId up);
  ValueId concat(const std::string& name, const std::vector<ValueId>& parts);

  ValueId rope(const std::string& name, ValueId in, ValueId table, int64_t heads,
               const AttentionShape& shape);
  void kv_write(ValueId k, ValueId v, ValueId cache, const AttentionShape& shape);
  ValueId attention(const std::string& name, ValueId q, ValueId cache, int layer,
                    const AttentionShape& shape);
  ValueId linear_recurrence(const std::string& name, ValueId gate, ValueId in, ValueId state);

  // Of replicas that step together: the rows of all, one after the other; the sums over replicas of
  // the own rows.
  ValueId gather_replicas(const std::string& name, ValueId in);
  ValueId reduce_replicas(const std::string& name, ValueId in);

  // The row of each request that gives its logits; or the rows that `index` names.
  ValueId select_rows(const std::string& name, ValueId in);
  ValueId select_rows(const std::string& name, ValueId in, ValueId index);
  // Float32, kOutput: [R, vocab].
  ValueId lm_head(ValueId in, ValueId table, ValueKind kind = ValueKind::kOutput,
                  Parallel parallel = Parallel::kVocab);
  // Logits of the vocabulary from `logits` of a part of it; `tensor` has where each token is there.
  ValueId map_logits(ValueId logits, const std::string& tensor);
  // Of a head's target: keeps the hidden states if they are one of BuildLimits::hidden_states.
  void keep_hidden(int64_t layer, ValueId hidden);

 private:
  ValueId activation(const std::string& name, Dim rows, int64_t cols) {
    return builder_.activation(scope_.prefix + name, rows, cols);
  }
  // Of a cache's group among the paged ones.
  size_t place_of(ValueId cache) const {
    return static_cast<size_t>(paged_place(builder_.program(), builder_.value(cache).group));
  }

  ProgramBuilder& builder_;
  OpScope scope_;
};

}  // namespace refrain::worker
