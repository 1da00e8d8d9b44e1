#pragma once
// The ends of a language model's step: from the step block to what the model reads, with drafts
// where there is speculation; and from logits to tokens, or from hidden states to pooled ones. Used
// once; the ProgramBuilder outlives it.

#include "worker/program/op_builder.h"

namespace refrain::worker {

class StepEnds {
 public:
  explicit StepEnds(ProgramBuilder& builder) : builder_(builder), limits_(builder.limits()) {}

  // The first op: token ids, positions and whatever else later ops read of the step. The reference
  // stays good as long as this object.
  const PrepareInputsOp& prepare_inputs();
  // The step's token ids, with drafts where there is speculation.
  ValueId token_ids();
  void sample(ValueId logits);  // and what becomes of drafts
  void pool(ValueId hidden, kernels::Pooling pooling);

 private:
  bool speculates() const { return limits_.speculates(); }
  template <class F>
  void each_paged(F&& f) const;
  void declare_rows();
  void declare_block();
  void declare_slots();
  Extent declare_speculation();
  void propose_drafts();
  void accept_drafts(const SampleOp& sample);

  ProgramBuilder& builder_;
  const BuildLimits& limits_;
  PrepareInputsOp step_;
  ValueId drafted_ids_ = kNoValue, num_drafts_ = kNoValue;
};

// Draws a token for each row of `logits`, into outputs of its own. The caller adds what the rows
// are: lengths, slots, flags, and what their slots have.
SampleOp declare_sample(ProgramBuilder& builder, const OpScope& scope, ValueId logits, Dim rows);

}  // namespace refrain::worker
