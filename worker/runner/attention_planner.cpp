#include "worker/runner/attention_planner.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace refrain::worker {

int64_t cascade_keys(const Lowering& lowering, size_t group, bool disabled) {
  const StateGroup& of = lowering.program.states[group];
  const AttentionBackend* backend = lowering.context.attention[group];
  const AttentionPlanOf plan = attention_plan_of(lowering.program, static_cast<int>(group));
  if (disabled || plan.value == kNoValue || of.window > 0 || backend->cascade_bytes == 0) return 0;
  return std::max<int64_t>(1, backend->cascade_bytes / of.paged.token_bytes());
}

AttentionPlanner::AttentionPlanner(Device& device, const Lowering& lowering,
                                   const std::vector<Addresses>& own) {
  size_t ints = 0;
  const Program& program = lowering.program;
  for (size_t i = 0; i < program.states.size(); ++i) {
    const AttentionPlanOf of = attention_plan_of(program, static_cast<int>(i));
    if (of.value == kNoValue) continue;
    groups_.push_back({of.shape, lowering.context.attention[i],
                       static_cast<int32_t>(program.states[i].window),
                       static_cast<int32_t*>(own[static_cast<size_t>(of.value)][0]), ints});
    ints += static_cast<size_t>(of.shape.ints());
  }
  if (ints == 0) return;
  for (auto& pinned : pinned_) {
    pinned = device.allocate_pinned(ints * sizeof(int32_t));
    std::memset(pinned->data(), 0, pinned->bytes());
  }
}

void AttentionPlanner::plan(const kernels::AttentionRows& rows, uint32_t turn, Stream& stream) {
  for (Group& group : groups_) {
    kernels::AttentionRows of_group = rows;
    of_group.sliding_window = group.window;
    if (group.window > 0) of_group.shared_prefix = of_group.shared_rows = 0;
    const bool had_prefix = std::exchange(group.has_prefix, of_group.shared_prefix > 0);
    const bool every_step = group.backend->plan != kernels::AttentionPlanKind::kNone;
    if (!every_step && !group.has_prefix && !had_prefix) continue;
    auto* plan =
        static_cast<int32_t*>(pinned_[turn % kernels::kTurns]->data()) + group.first_pinned;
    const auto make = group.backend->plan == kernels::AttentionPlanKind::kFlashinfer
                          ? kernels::make_flashinfer_plan
                          : kernels::make_attention_plan;
    const int32_t ints = make(group.shape, of_group, plan);
    stream.copy(group.memory, plan, static_cast<size_t>(ints) * sizeof(int32_t));
  }
}

void AttentionPlanner::plan(const kernels::StepLayout& layout, const uint8_t* block, int32_t rows,
                            uint32_t turn, Stream& stream) {
  const auto of_rows = [&](size_t offset) {
    return std::span(reinterpret_cast<const int32_t*>(block + offset), static_cast<size_t>(rows));
  };
  plan({of_rows(layout.row_slot), of_rows(layout.row_query_len), of_rows(layout.row_context)}, turn,
       stream);
}

}  // namespace refrain::worker
