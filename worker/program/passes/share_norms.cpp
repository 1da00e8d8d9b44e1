#include <algorithm>
#include <utility>

#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

bool takes(const Program& program, const FusedLinearOp& linear) {
  return is_bf16(program, linear.in) && is_bf16(program, linear.weight) &&
         has_whole_atoms(program, linear.weight) && linear.norm == kNoValue && linear.push < 0;
}

// The linear at `op` with what may stand beside it; its weight kNoValue: there is none.
FusedLinearOp linear_at(const Program& program, int op) {
  if (op < 0) return {};
  const Op& found = program.ops[static_cast<size_t>(op)];
  if (const auto* whole = std::get_if<FusedLinearOp>(&found)) return *whole;
  const auto* linear = std::get_if<LinearOp>(&found);
  return linear == nullptr ? FusedLinearOp{} : fused(*linear);
}

}  // namespace

Program share_norms(Program program) {
  if (program.tensor_parallel_size > 1) return program;  // ranks may have shares of K that differ
  const Uses uses(program);
  std::vector<bool> remove(program.ops.size(), false);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const auto* norm = std::get_if<RmsNormOp>(&program.ops[i]);
    if (norm == nullptr || norm->group != 0 || !uses.used_once(norm->out)) continue;
    const int first = uses.def(norm->in), second = uses.users(norm->out).front();
    FusedLinearOp before = linear_at(program, first), behind = linear_at(program, second);
    if (before.weight == kNoValue || behind.weight == kNoValue || before.silu_mul ||
        !is_bf16(program, before.out) || behind.in != norm->out || !takes(program, before) ||
        !takes(program, behind)) {
      continue;
    }
    const Value& normed = program.value(norm->out);
    Value squares{.name = normed.name + ".squares",
                  .kind = normed.kind,
                  .dtype = DType::kFloat32,
                  .rows = normed.rows,
                  .cols = kernels::square_parts(normed.cols)};
    const ValueId id = add_value(program, std::move(squares));
    before.next_norm = norm->weight;
    before.next_out = norm->out;
    before.next_squares = behind.squares = id;
    behind.eps = norm->eps;
    program.ops[static_cast<size_t>(first)] = before;
    program.ops[static_cast<size_t>(second)] = behind;
    remove[i] = true;
  }
  drop_ops(program, remove);
  return program;
}

bool shares_norms(const Program& program) {
  return std::ranges::any_of(program.ops, [](const Op& op) {
    const auto* linear = std::get_if<FusedLinearOp>(&op);
    return linear != nullptr && linear->squares != kNoValue;
  });
}

}  // namespace refrain::worker
