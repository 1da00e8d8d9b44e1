#include <fmt/format.h>

#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {

kernels::AttentionPlanShape plan_shape(const Program& program, const AttentionOp& op) {
  return {static_cast<int32_t>(program.extents[kTokens].max),
          static_cast<int32_t>(program.extents[kRequests].max),
          static_cast<int32_t>(op.split_tokens), static_cast<int32_t>(op.q_heads / op.kv_heads),
          static_cast<int32_t>(program.value(op.block_table).cols)};
}

Program add_attention_plans(Program program, const std::vector<bool>& planned) {
  std::vector<ValueId> plans(program.states.size(), kNoValue);
  for (Op& op : program.ops) {
    auto* attention = std::get_if<AttentionOp>(&op);
    if (attention == nullptr) continue;
    const auto group = static_cast<size_t>(program.value(attention->cache).group);
    if (!planned[group]) continue;
    attention->split_tokens = program.logits_per_request;
    const kernels::AttentionPlanShape shape = plan_shape(program, *attention);
    if (plans[group] == kNoValue) {
      plans[group] = add_value(program, {.name = program.states[group].name + ".attention_plan",
                                         .kind = ValueKind::kState,
                                         .dtype = DType::kInt32,
                                         .rows = Dim::constant(shape.ints()),
                                         .cols = 1,
                                         .storage = Storage::kDevice,
                                         .zeroed = true,
                                         .of_context = true});
    }
    attention->plan = plans[group];
    attention->parts = add_value(program, {.name = program.value(attention->out).name + ".parts",
                                           .dtype = DType::kFloat32,
                                           .rows = Dim::constant(shape.max_parts()),
                                           .cols = attention->q_heads * (attention->head_dim + 2)});
  }
  return program;
}

namespace {

const AttentionOp* attention_of(const Program& program, int group) {
  for (const Op& op : program.ops) {
    const auto* attention = std::get_if<AttentionOp>(&op);
    if (attention != nullptr && program.value(attention->cache).group == group) return attention;
  }
  return nullptr;
}

}  // namespace

AttentionPlanOf attention_plan_of(const Program& program, int group) {
  const AttentionOp* attention = attention_of(program, group);
  if (attention == nullptr || attention->plan == kNoValue) return {};
  return {attention->plan, plan_shape(program, *attention)};
}

AttentionHeads attention_heads_of(const Program& program, int group) {
  const AttentionOp* attention = attention_of(program, group);
  if (attention == nullptr) return {};
  return {program.value(attention->cache).dtype, program.value(attention->out).dtype,
          attention->head_dim};
}

}  // namespace refrain::worker
