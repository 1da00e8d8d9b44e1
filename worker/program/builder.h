#pragma once
// Writes a Program down, op by op: model files (worker/models) call it in the order of the
// computation. Names of weights are the checkpoint's tensor names. Used once, then finish().

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/program/program.h"

namespace refrain::worker {

// The most of a step and of a request that a Program is built for; tests that run none leave zeros.
struct BuildLimits {
  StepLimits step;
  int32_t max_blocks = 0;  // of one request's block table
  // Speculation by prompt lookup; no drafts: none.
  int32_t num_drafts = 0;                     // of a row, at most
  int32_t lookup_least = 0, lookup_most = 0;  // tokens that are looked up
  int32_t history_cols = 0;                   // tokens of a request, at most
  // Speculation by a draft model. Of its target: the draft's state groups, which have a block table
  // and KV slots among the target's inputs. Of the draft itself: that it is one.
  std::vector<StateGroup> draft_groups = {};
  bool drafts = false;
  bool head =
      false;  // of the draft: that it is a draft head, which reads the target's hidden states
  // Of the target of a head: which ones it keeps for it, in this order: what goes into a layer, or
  // kAfterNorm.
  std::vector<int64_t> hidden_states = {};
  bool tells_logits = false, tells_processed = false;  // as in kernels::SampleArgs
  static constexpr int64_t kAfterNorm = -1;
};

// Geometry of one attention layer.
struct AttentionShape {
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  float scale = 1.0f;
};

class ProgramBuilder {
 public:
  // `limits` size the memory of the step's values: the slots' state, inputs and outputs.
  ProgramBuilder(std::string name, DType activation_dtype, DType weight_dtype, int64_t vocab_size,
                 const BuildLimits& limits = {});

  // State groups, before prepare_inputs(): their block tables are among its operands. `window` as
  // in StateGroup; `support` of the op that keeps the state.
  int paged_group(const std::string& name, int64_t window = 0);
  int slot_group(const std::string& name, AttentionCGSupport support);

  // Values. A weight asked for twice under one name is one value (tied embeddings).
  ValueId matrix(const std::string& tensor, int64_t rows, int64_t cols,
                 SplitUnit unit = SplitUnit::kNone);
  ValueId vector(const std::string& tensor, int64_t size, SplitUnit unit = SplitUnit::kNone);
  ValueId rope_table(int64_t positions, int64_t rotary_dim);
  int64_t cols(ValueId id) const { return program_.value(id).cols; }
  // What a layer keeps; all layers of a group alike.
  ValueId kv_cache(int group, int layer, const AttentionShape& shape, DType dtype);
  ValueId slot_state(int group, int layer, SlotLayout layout);

  // The first op: token ids, positions and whatever else later ops read of the step. The reference
  // stays good until finish().
  const PrepareInputsOp& prepare_inputs();
  // The step's token ids, with drafts where there is speculation.
  ValueId token_ids();
  // In a draft model's Program, instead of prepare_inputs(): what the target's has left. It is run
  // 1 + num_drafts times in one step: over all tokens of the target's step, then token by token.
  int num_passes() const { return limits_.drafts ? 1 + limits_.num_drafts : 1; }
  void begin_pass(int pass);
  void end_pass(ValueId logits);  // of all but the first: gives a draft
  // Hidden states of the step's tokens for a head: what the target keeps, and what a head reads of
  // it. In the second pass a head goes on from those before each request's last token.
  void keep_hidden(int64_t layer, ValueId hidden);  // if it is one of BuildLimits::hidden_states
  ValueId hidden_state(int index, int64_t cols);
  ValueId select_hidden(const std::string& name, ValueId in);
  // A weight that the target has by this name.
  ValueId shared_matrix(const std::string& tensor, int64_t rows, int64_t cols, SplitUnit unit,
                        DType dtype);
  // Logits of the vocabulary from `logits` of a part of it; `tensor` has where each token is there.
  ValueId map_logits(ValueId logits, const std::string& tensor);
  ValueId concat(const std::string& name, const std::vector<ValueId>& parts);
  // Ops; each returns the value it defines, named `name`.
  ValueId embed(const std::string& name, ValueId ids, ValueId table);
  ValueId rms_norm(const std::string& name, ValueId in, ValueId weight, double eps,
                   int64_t group = 0);
  ValueId add(const std::string& name, ValueId residual, ValueId delta);
  ValueId linear(const std::string& name, ValueId in, ValueId weight, ValueId bias,
                 Parallel parallel, SplitUnit unit);
  // Float32, kOutput: [R, vocab].
  ValueId lm_head(ValueId in, ValueId table, ValueKind kind = ValueKind::kOutput,
                  Parallel parallel = Parallel::kVocab);
  ValueId silu_gate(const std::string& name, ValueId gate, ValueId up);
  ValueId rope(const std::string& name, ValueId in, ValueId table, int64_t heads,
               const AttentionShape& shape);
  void kv_write(ValueId k, ValueId v, ValueId cache, const AttentionShape& shape);
  ValueId attention(const std::string& name, ValueId q, ValueId cache, int layer,
                    const AttentionShape& shape);
  ValueId linear_recurrence(const std::string& name, ValueId gate, ValueId in, ValueId state);
  // The row of each request that gives its logits.
  ValueId select_rows(const std::string& name, ValueId in);
  // Between replicas that step together, `count` of them: the rows of all, one after the other; and
  // the sums over replicas of the own rows.
  void set_replicas(int count) { program_.replicas = count; }
  ValueId gather_replicas(const std::string& name, ValueId in);
  ValueId reduce_replicas(const std::string& name, ValueId in);
  void sample(ValueId logits);  // and what becomes of drafts
  void pool(ValueId hidden, kernels::Pooling pooling);

  Program finish(int64_t max_positions);

 private:
  ValueId define(Value value);
  SampleOp declare_sample(ValueId logits, Dim rows);
  void declare_passed();
  void next_tokens();
  ValueId passed(std::string name, ValueKind kind, DType dtype, Dim rows, int64_t cols = 1);
  void declare_speculation();
  void accept_drafts(const SampleOp& sample);
  bool speculates() const { return limits_.num_drafts > 0; }
  ValueId activation(const std::string& name, Dim rows, int64_t cols);
  ValueId input(const char* name, DType dtype, Dim rows);
  // int32 that the host makes while the step runs.
  ValueId pinned_input(const char* name, Dim rows, int64_t cols);
  ValueId of_slots(std::string name, DType dtype, int64_t cols, bool zeroed = false);
  void keep_in(int group, int layer, StateKind kind);
  // Of a cache's group among the paged ones.
  size_t place_of(ValueId cache) const {
    return static_cast<size_t>(paged_place(program_, program_.value(cache).group));
  }
  ValueId output(const char* name, DType dtype, Dim rows, int64_t cols = 1);
  ValueId weight(const std::string& tensor, int64_t rows, int64_t cols, WeightUse use,
                 SplitUnit unit);
  Dim rows_of(ValueId id) const { return program_.value(id).rows; }

  Program program_;
  DType activation_dtype_;
  DType weight_dtype_;
  BuildLimits limits_;
  PrepareInputsOp step_;
  ValueId drafted_ids_ = kNoValue, num_drafts_ = kNoValue;
  // Of a draft model: what the target's step and slots have, which passes go on from.
  PrepareInputsOp target_;
  ValueId drafts_ = kNoValue, draft_token_ = kNoValue, scratch_ = kNoValue;
  ValueId hidden_index_ = kNoValue, sample_lens_ = kNoValue;  // of a head
  std::array<ValueId, 3> biases_{};                           // tokens, values, mask
  int pass_ = 0;
  std::string prefix_;  // of the pass's activations
  std::unordered_map<std::string, ValueId> weights_;
};

}  // namespace refrain::worker
