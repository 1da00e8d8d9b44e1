#include "worker/program/passes/best_tokens.h"

#include "worker/program/passes/rewrite.h"

namespace refrain::worker {

ValueId add_best(Program& program, ValueId logits, ValueId like, const char* suffix, int shards,
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

Program find_best(Program program, const kernels::FewRows& device) {
  const Uses uses(program);
  const ValueId live_logits = live_logits_of(program);
  if (device.best_parts == 0 || live_logits == kNoValue) return program;
  for (Op& op : program.ops) {
    auto* sample = std::get_if<SampleOp>(&op);
    if (sample == nullptr || sample->best != kNoValue || !uses.used_once(sample->logits)) continue;
    const auto* linear = def_as<LinearOp>(program, uses, sample->logits);
    if (linear == nullptr || !is_bf16(program, linear->in) || !is_bf16(program, linear->weight) ||
        linear->bias != kNoValue || linear->residual != kNoValue ||
        !has_whole_atoms(program, linear->weight) ||
        program.value(linear->weight).rows.scale % 16 != 0) {
      continue;
    }
    FusedLinearOp whole = fused(*linear);
    whole.live_logits = live_logits;
    whole.best = sample->best =
        add_best(program, sample->logits, sample->row_slot, ".best", 1, device.best_parts);
    program.ops[static_cast<size_t>(uses.def(sample->logits))] = whole;
  }
  return program;
}

}  // namespace refrain::worker
