#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {

// The linear stands directly before the sum: who wrote the sum's residual, which it reads early,
// has ended when a linear lets it start (P-7).
Program send_sums(Program program) {
  const Uses uses(program);
  for (size_t i = 1; i < program.ops.size(); ++i) {
    auto* sum = std::get_if<AllReduceAddRmsNormOp>(&program.ops[i]);
    const auto* linear = std::get_if<LinearOp>(&program.ops[i - 1]);
    if (sum == nullptr || linear == nullptr || sum->delta != linear->out ||
        !uses.used_once(linear->out) || linear->residual != kNoValue) {
      continue;
    }
    if (!is_bf16(program, linear->in) || !is_bf16(program, linear->weight) ||
        !is_bf16(program, linear->out) || !has_whole_atoms(program, linear->weight) ||
        !has_equal_shares(program, linear->weight, linear->parallel) ||
        program.value(linear->out).cols % 8 != 0) {
      continue;
    }
    FusedLinearOp sender = fused(*linear);
    sender.sends = sum->sent = true;
    program.ops[i - 1] = sender;
  }
  return program;
}

}  // namespace refrain::worker
