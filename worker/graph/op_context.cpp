#include "worker/graph/op_context.h"

namespace refrain::worker {
namespace {

// Null: none.
void* weight_address(const LoadedWeight& weight) {
  if (weight.vector == nullptr) return const_cast<void*>(weight.matrix.data);
  return const_cast<float*>(weight.vector);
}

}  // namespace

Status bind_values(OpContext& context, const MemoryPlan& plan, void* arena,
                   const std::vector<void*>& caches, const std::vector<Addresses>& own) {
  const auto& values = context.program->values;
  context.addresses.assign(values.size(), {});
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& value = values[i];
    Addresses& addresses = context.addresses[i];
    if (value.storage == Storage::kArena) {
      // Nobody's place: what no op of this lowering touches.
      if (plan.offsets[i] >= 0) addresses.fill(static_cast<std::byte*>(arena) + plan.offsets[i]);
      continue;
    }
    if (value.kind == ValueKind::kWeight) {
      addresses.fill(weight_address(context.weights->by_value[i]));
    } else if (value.is_paged()) {
      // A lowering may have values of its own, after those of the Program it comes from.
      addresses.fill(i < caches.size() ? caches[i] : nullptr);
    } else if (i < own.size()) {
      addresses = own[i];
    }
    if (addresses[0] == nullptr && value.cols > 0) {
      return fail(ErrorCode::kInternal, "program {}: there is no memory for {}",
                  context.program->name, value.name);
    }
  }
  return {};
}

}  // namespace refrain::worker
