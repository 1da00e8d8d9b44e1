// CG-29: the addresses that launches hold, so that a replay can be held against its capture.

#include "worker/graph/interpreter.h"

namespace refrain::worker {

std::vector<ArgAddress> collect_addresses(const OpContext& context, OpRange ops) {
  std::vector<ArgAddress> found;
  const auto add = [&](int op, const char* arg, ValueId id) {
    if (id == kNoValue) return;
    const Addresses& addresses = context.addresses[static_cast<size_t>(id)];
    const bool by_turn = context.program->value(id).storage == Storage::kPinned;
    for (size_t turn = 0; turn < (by_turn ? addresses.size() : 1); ++turn) {
      found.push_back({op, arg, id, addresses[turn]});
    }
  };
  for (int i = ops.begin; i < ops.end; ++i) {
    visit_operands(context.program->ops[static_cast<size_t>(i)],
                   [&](ValueId id, const Operand& operand) { add(i, operand.name, id); });
    // Whatever an op's rows are counted by, its launch holds the live count.
    for (const Extent& extent : context.program->extents) add(i, extent.name.c_str(), extent.live);
  }
  return found;
}

std::string describe_moved(const Program& program, const std::vector<ArgAddress>& captured,
                           const std::vector<ArgAddress>& now) {
  for (size_t i = 0; i < captured.size() && i < now.size(); ++i) {
    const ArgAddress &was = captured[i], &is = now[i];
    if (was.address == is.address) continue;
    return fmt::format("op {} {}: argument {} ({}) was at {} when captured and is at {} now",
                       was.op, op_name(program.ops[static_cast<size_t>(was.op)]), was.arg,
                       program.value(was.value).name, was.address, is.address);
  }
  if (captured.size() != now.size()) {
    return fmt::format("{} addresses were captured and {} are in use now", captured.size(),
                       now.size());
  }
  return {};
}

}  // namespace refrain::worker
