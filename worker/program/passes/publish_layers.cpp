#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

constexpr const char* kFlags = "layer_flags";

}  // namespace

Program publish_layers(Program program) {
  // By state group, as what moves blocks counts the layers (worker/kv/kv_memory.h).
  std::vector<ValueId> layers;
  for (size_t group = 0; group < program.states.size(); ++group)
    for (size_t i = 0; i < program.values.size(); ++i)
      if (program.values[i].is_paged() && program.values[i].group == static_cast<int>(group))
        layers.push_back(static_cast<ValueId>(i));
  if (layers.empty()) return program;
  const PrepareInputsOp prepare = prepare_op(program);
  PublishLayerOp publish{.block = prepare.block,
                         .turn = prepare.turn,
                         .header = static_cast<int64_t>(prepare.limits.layout().header)};
  publish.flags = add_value(program, {.name = kFlags,
                                      .kind = ValueKind::kState,
                                      .dtype = DType::kInt64,
                                      .rows = Dim::constant(1),
                                      .cols = std::ssize(layers),
                                      .storage = Storage::kDevice,
                                      .zeroed = true,
                                      .of_context = true});
  // Behind the last op that has the layer's blocks to do with: which of them write is their own.
  std::multimap<size_t, Op> before;
  for (size_t place = 0; place < layers.size(); ++place) {
    size_t behind = 0;
    for (size_t at = 0; at < program.ops.size(); ++at)
      visit_operands(program.ops[at], [&](ValueId id, const Operand&) {
        if (id == layers[place]) behind = at + 1;
      });
    publish.cache = layers[place];
    publish.place = static_cast<int64_t>(place);
    before.emplace(behind, publish);
  }
  insert_ops(program, before);
  return program;
}

ValueId layer_flags_of(const Program& program) {
  for (size_t i = 0; i < program.values.size(); ++i)
    if (program.values[i].name == kFlags) return static_cast<ValueId>(i);
  return kNoValue;
}

}  // namespace refrain::worker
