#include <algorithm>
#include <utility>

#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

// What linear_cluster.cu takes: bfloat16, K of whole groups of 64 and more than two.
bool takes(const Program& program, const FusedLinearOp& linear) {
  const Value& weight = program.value(linear.weight);
  return weight.dtype == DType::kBFloat16 && weight.cols % 64 == 0 && weight.cols > 128 &&
         program.value(linear.in).dtype == DType::kBFloat16 && linear.norm == kNoValue &&
         linear.push < 0;
}

// The linear at `op` with what may stand beside it; its weight kNoValue: there is none.
FusedLinearOp linear_at(const Program& program, int op) {
  if (op < 0) return {};
  const Op& found = program.ops[static_cast<size_t>(op)];
  if (const auto* fused = std::get_if<FusedLinearOp>(&found)) return *fused;
  const auto* linear = std::get_if<LinearOp>(&found);
  if (linear == nullptr) return {};
  return {.in = linear->in,
          .weight = linear->weight,
          .bias = linear->bias,
          .residual = linear->residual,
          .out = linear->out};
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
        program.value(before.out).dtype != DType::kBFloat16 || behind.in != norm->out ||
        !takes(program, before) || !takes(program, behind)) {
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
