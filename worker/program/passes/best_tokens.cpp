#include "worker/program/passes/best_tokens.h"

#include "worker/program/passes/rewrite.h"

namespace refrain::worker {

ValueId add_best(Program& program, ValueId logits, ValueId like, const char* suffix, int64_t shards,
                 int32_t parts) {
  Dim rows = program.value(like).rows;
  rows.scale *= shards;
  return add_value(program, {.name = program.value(logits).name + suffix,
                             .kind = ValueKind::kActivation,
                             .dtype = DType::kFloat32,
                             .rows = rows,
                             .cols = int64_t{2} * parts});
}

ValueId live_logits_of(const Program& program) {
  for (const Op& op : program.ops) {
    if (const auto* prepare = std::get_if<PrepareInputsOp>(&op)) return prepare->live_logits;
    if (const auto* inputs = std::get_if<DraftInputsOp>(&op)) return inputs->live_logits;
  }
  return kNoValue;
}

namespace {

bool finds_best(const Program& program, const LinearOp& linear) {
  return is_bf16(program, linear.in) && is_bf16(program, linear.weight) &&
         linear.bias == kNoValue && linear.residual == kNoValue &&
         has_whole_atoms(program, linear.weight) &&
         program.value(linear.weight).rows.scale % 16 == 0;
}

// The linear that makes the logits of `tokens`, which `users` ops read, finds their best from now
// on: in the value returned. kNoValue: it does not take the shape.
ValueId find_in_linear(Program& program, const Uses& uses, const BestTokensOp& tokens, size_t users,
                       int32_t parts) {
  const auto* linear = def_as<LinearOp>(program, uses, tokens.logits);
  if (linear == nullptr || !finds_best(program, *linear) ||
      uses.users(tokens.logits).size() != users) {
    return kNoValue;
  }
  FusedLinearOp whole = fused(*linear);
  whole.live_logits = live_logits_of(program);
  whole.first_token = tokens.first_token;
  whole.num_tokens = tokens.num_tokens;
  whole.best = add_best(program, tokens.logits, tokens.row_slot, ".found", 1, parts);
  program.ops[static_cast<size_t>(uses.def(tokens.logits))] = whole;
  return whole.best;
}

}  // namespace

Program find_best(Program program, const kernels::FewRows& device) {
  const Uses uses(program);
  const int32_t parts = device.best_parts;
  if (parts == 0 || live_logits_of(program) == kNoValue) return program;
  std::vector<bool> remove(program.ops.size(), false);
  for (Op& op : program.ops) {
    auto* sample = std::get_if<SampleOp>(&op);
    if (sample == nullptr) continue;
    if (sample->best == kNoValue) {
      const BestTokensOp all{
          .logits = sample->logits, .row_slot = sample->row_slot, .num_tokens = sample->vocab_size};
      sample->best = find_in_linear(program, uses, all, 1, parts);
      continue;
    }
    const auto* gathered = def_as<AllGatherOp>(program, uses, sample->best);
    const auto* tokens =
        gathered == nullptr ? nullptr : def_as<BestTokensOp>(program, uses, gathered->in);
    if (tokens == nullptr) continue;
    // The logits are gathered, too, where a row asks for more.
    const ValueId found = find_in_linear(program, uses, *tokens, 2, parts);
    if (found == kNoValue) continue;
    remove[static_cast<size_t>(uses.def(gathered->in))] = true;
    const int gather = uses.def(sample->best);
    sample->best = add_best(program, tokens->logits, tokens->row_slot, ".found.gathered",
                            sample->shards, parts);
    program.ops[static_cast<size_t>(gather)] = AllGatherOp{.in = found, .out = sample->best};
  }
  drop_ops(program, remove);
  return program;
}

}  // namespace refrain::worker
