#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

// The weight of the linear that alone reads what a norm makes, and whose result SiLU·mul or RoPE
// takes: those of a layer's insides. kNoValue: there is none.
ValueId weight_behind(const Program& program, const Uses& uses, ValueId normed) {
  if (!uses.used_once(normed) || !is_bf16(program, normed)) return kNoValue;
  const auto* linear =
      std::get_if<LinearOp>(&program.ops[static_cast<size_t>(uses.users(normed).front())]);
  if (linear == nullptr || !is_bf16(program, linear->weight) || !uses.used_once(linear->weight) ||
      !uses.used_once(linear->out)) {
    return kNoValue;
  }
  const Op& user = program.ops[static_cast<size_t>(uses.users(linear->out).front())];
  const bool inside =
      std::holds_alternative<SiluMulOp>(user) || std::holds_alternative<RopeKvWriteOp>(user);
  return inside ? linear->weight : kNoValue;
}

}  // namespace

Program fold_norms(Program program) {
  if (program.tensor_parallel_size > 1) return program;  // its norms are one with sums over ranks
  const Uses uses(program);
  const auto fold = [&](ValueId norm, ValueId normed) {
    const ValueId weight = weight_behind(program, uses, normed);
    if (weight == kNoValue || !uses.used_once(norm)) return;
    if (program.value(norm).passed || program.value(weight).passed) return;
    program.values[static_cast<size_t>(weight)].norm = norm;
  };
  for (const Op& op : program.ops) {
    const auto* norm = std::get_if<RmsNormOp>(&op);
    if (norm != nullptr && norm->group == 0) fold(norm->weight, norm->out);
    if (const auto* add = std::get_if<AddRmsNormOp>(&op)) fold(add->weight, add->out);
  }
  return program;
}

}  // namespace refrain::worker
