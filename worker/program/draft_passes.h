#pragma once
// The step of a draft model: it is run 1 + num_drafts times, over all tokens of the target's step,
// then token by token, and each time but the first gives a draft. It has no inputs of its own: what
// it reads is what the target's step has left (Value::passed). Used once; the ProgramBuilder
// outlives it.

#include <array>

#include "worker/program/op_builder.h"

namespace refrain::worker {

class DraftPasses {
 public:
  explicit DraftPasses(ProgramBuilder& builder) : builder_(builder), limits_(builder.limits()) {}

  // In their order; state groups are there before the first.
  const OpScope& begin(int pass);
  void end(ValueId logits);  // of all but the first

  // Of a draft head: the target's hidden states of the step's tokens, in the first pass.
  ValueId hidden_state(int index, int64_t cols);
  // In the second one, which goes on from it: where each request's last token but one is.
  ValueId hidden_index() const { return hidden_index_; }

 private:
  void declare_target();
  void next_tokens();

  ProgramBuilder& builder_;
  const BuildLimits& limits_;
  PrepareInputsOp target_;  // what its step and slots have
  ValueId drafts_ = kNoValue, draft_token_ = kNoValue, scratch_ = kNoValue;
  std::array<ValueId, 3> biases_{};                           // tokens, values, mask
  ValueId hidden_index_ = kNoValue, sample_lens_ = kNoValue;  // of a head
  OpScope scope_;
};

}  // namespace refrain::worker
