#include "worker/runner/hidden_states.h"

#include <algorithm>

#include "worker/program/builder.h"

namespace refrain::worker {
namespace {

using enum ipc::CaptureHiddenMode;

ipc::CaptureHiddenMode of_values(const Program& program, ValueKind kind) {
  const bool any = std::ranges::any_of(program.values, [kind](const Value& value) {
    return value.kind == kind && value.name.starts_with(kHiddenStates);
  });
  return any ? kFull : kNull;
}

ipc::CaptureHiddenMode of_pooling(const Program& program) {
  for (const Op& op : program.ops)
    if (const auto* pool = std::get_if<PoolOp>(&op))
      return pool->pooling == kernels::Pooling::kLast ? kLast : kFull;
  return kNull;
}

}  // namespace

ipc::CaptureHiddenMode hidden_left(const Program& program) {
  return std::max(of_values(program, ValueKind::kOutput), of_pooling(program));
}

HiddenReaders hidden_readers(const Program& model, const Program* draft) {
  return {.draft = draft == nullptr ? kNull : of_values(*draft, ValueKind::kInput),
          .pooling = of_pooling(model)};
}

}  // namespace refrain::worker
