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

// What the ranks found, from where they found it to where it is sampled.
struct FoundByRanks {
  int gathered = -1, found = -1;  // ops; -1: not so
};
FoundByRanks found_by_ranks(const Program& program, const Uses& uses, const SampleOp& sample) {
  const auto* gathered = def_as<AllGatherOp>(program, uses, sample.best);
  if (gathered == nullptr || def_as<BestTokensOp>(program, uses, gathered->in) == nullptr)
    return {};
  return {uses.def(sample.best), uses.def(gathered->in)};
}

}  // namespace

Program find_best(Program program, const kernels::FewRows& device) {
  const Uses uses(program);
  const ValueId live_logits = live_logits_of(program);
  if (device.best_parts == 0 || live_logits == kNoValue) return program;
  std::vector<bool> remove(program.ops.size(), false);
  const auto at = [&program](int op) -> Op& { return program.ops[static_cast<size_t>(op)]; };
  for (Op& op : program.ops) {
    auto* sample = std::get_if<SampleOp>(&op);
    if (sample == nullptr) continue;
    const FoundByRanks ranks = found_by_ranks(program, uses, *sample);
    if (sample->best != kNoValue && ranks.found < 0) continue;
    BestTokensOp tokens{.logits = sample->logits, .num_tokens = sample->vocab_size};
    if (ranks.found >= 0) tokens = std::get<BestTokensOp>(at(ranks.found));
    // Of ranks the logits are gathered, too, where a row asks for more.
    const auto* linear = def_as<LinearOp>(program, uses, tokens.logits);
    if (linear == nullptr || !finds_best(program, *linear) ||
        uses.users(tokens.logits).size() != (ranks.found < 0 ? 1U : 2U)) {
      continue;
    }
    FusedLinearOp whole = fused(*linear);
    whole.live_logits = live_logits;
    whole.first_token = tokens.first_token;
    whole.num_tokens = tokens.num_tokens;
    whole.best = add_best(program, tokens.logits, sample->row_slot, ".found", 1, device.best_parts);
    const ValueId all = ranks.found < 0
                            ? whole.best
                            : add_best(program, tokens.logits, sample->row_slot, ".found.gathered",
                                       sample->shards, device.best_parts);
    at(uses.def(tokens.logits)) = whole;
    sample->best = all;
    if (ranks.found < 0) continue;
    std::get<AllGatherOp>(at(ranks.gathered)) = {.in = whole.best, .out = all};
    remove[static_cast<size_t>(ranks.found)] = true;
  }
  drop_ops(program, remove);
  return program;
}

}  // namespace refrain::worker
