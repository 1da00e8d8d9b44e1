#pragma once
// A Program that is being written down: its values, weights, state groups, and its ops in the order
// of the computation. Names of weights are the checkpoint's tensor names. What ops there are is in
// op_builder.h, how a step begins and ends in step_ends.h and draft_passes.h. Used once, then
// finish().

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/program/program.h"

namespace refrain::worker {

// Names of the hidden states that a target keeps for its head begin so.
inline constexpr const char* kHiddenStates = "hidden_states.";

// The most of a step and of a request that a Program is built for; tests that run none leave zeros.
struct BuildLimits {
  StepLimits step;
  int32_t max_blocks = 0;  // of one request's block table
  // Speculation by prompt lookup; no drafts: none.
  int32_t num_drafts = 0;                     // of a row, at most
  int32_t lookup_least = 0, lookup_most = 0;  // tokens that are looked up
  int32_t history_cols = 0;                   // tokens of a request, at most
  int64_t synthetic_acceptance = -1;          // kernels::AcceptDraftsArgs::synthetic
  // Speculation by a draft model. Of its target: the draft's state groups, which have a block table
  // and KV slots among the target's inputs. Of the draft itself: that it is one.
  std::vector<StateGroup> draft_groups = {};
  bool drafts = false;
  bool head = false;  // of the draft: it is a draft head, which reads the target's hidden states
  // Of the target of a head: which ones it keeps for it, in this order: what goes into a layer, or
  // kAfterNorm.
  std::vector<int64_t> hidden_states = {};
  bool tells_logits = false, tells_processed = false;  // as in kernels::SampleArgs
  static constexpr int64_t kAfterNorm = -1;

  bool speculates() const { return num_drafts > 0; }
  // Times that the Program runs through its model in one step.
  int num_passes() const { return drafts ? 1 + num_drafts : 1; }
  // Name of the value that one of hidden_states is kept in.
  static std::string hidden_name(size_t index) { return kHiddenStates + std::to_string(index); }
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

  const Program& program() const { return program_; }
  const BuildLimits& limits() const { return limits_; }
  DType activation_dtype() const { return activation_dtype_; }
  const Value& value(ValueId id) const { return program_.value(id); }
  Dim rows(ValueId id) const { return value(id).rows; }
  int64_t cols(ValueId id) const { return value(id).cols; }

  // State groups, before the step's inputs: their block tables are among them. `window` as in
  // StateGroup; `support` of the op that keeps the state.
  int paged_group(const std::string& name, int64_t window = 0);
  int slot_group(const std::string& name, AttentionCGSupport support);
  // What a layer keeps; all layers of a group alike.
  ValueId kv_cache(int group, int layer, const AttentionShape& shape, DType dtype);
  ValueId slot_state(int group, int layer, SlotLayout layout);

  // A weight asked for twice under one name is one value (tied embeddings).
  ValueId matrix(const std::string& tensor, int64_t rows, int64_t cols,
                 SplitUnit unit = SplitUnit::kNone);
  ValueId vector(const std::string& tensor, int64_t size, SplitUnit unit = SplitUnit::kNone);
  ValueId rope_table(int64_t positions, int64_t rotary_dim);
  // A weight that the target has by this name.
  ValueId shared_matrix(const std::string& tensor, int64_t rows, int64_t cols, SplitUnit unit,
                        DType dtype);
  // Where each token of a part of the vocabulary is in the whole one.
  ValueId token_map(const std::string& tensor, int64_t size);

  ValueId define(Value value);
  ValueId activation(std::string name, Dim rows, int64_t cols);  // of the model's dtype
  ValueId input(std::string name, DType dtype, Dim rows);
  // int32 that the host makes while the step runs.
  ValueId pinned_input(std::string name, Dim rows, int64_t cols);
  ValueId output(std::string name, DType dtype, Dim rows, int64_t cols = 1);
  // One row a slot, and one for the reserved slot of padded requests.
  Dim slots() const { return Dim::constant(int64_t{limits_.step.max_reqs} + 1); }
  ValueId of_slots(std::string name, DType dtype, int64_t cols, bool zeroed = false);
  // What the target's Program has by this name.
  ValueId passed(std::string name, ValueKind kind, DType dtype, Dim rows, int64_t cols = 1);

  void set_replicas(int count) { program_.replicas = count; }  // that step together
  void set_extents(std::vector<Extent> extents, int64_t logits_per_request = 1);
  void emit(const Op& op) { program_.ops.push_back(op); }

  Program finish(int64_t max_positions);

 private:
  ValueId weight(const std::string& tensor, int64_t rows, int64_t cols, WeightUse use,
                 SplitUnit unit);
  StateGroup& keep_in(int group, int layer, StateKind kind);
  Value& at(ValueId id) { return program_.values[static_cast<size_t>(id)]; }

  Program program_;
  DType activation_dtype_;
  DType weight_dtype_;
  BuildLimits limits_;
  std::unordered_map<std::string, ValueId> weights_;
};

}  // namespace refrain::worker
