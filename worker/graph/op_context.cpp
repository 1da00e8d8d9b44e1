#include "worker/graph/op_context.h"

#include <string_view>

namespace refrain::worker {
namespace {

void* input_address(const StepBuffers& buffers, std::string_view name) {
  const kernels::BatchInputs& in = buffers.inputs;
  if (name == "token_ids") return in.token_ids;
  if (name == "positions") return in.positions;
  if (name == "kv_slots") return in.kv_slots;
  if (name == "logit_index") return in.logit_index;
  return nullptr;
}

}  // namespace

Status bind_values(OpContext& context, const MemoryPlan& plan, void* arena,
                   const std::vector<void*>& caches) {
  const auto& values = context.program->values;
  context.addresses.assign(values.size(), nullptr);
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& value = values[i];
    void*& address = context.addresses[i];
    switch (value.kind) {
      case ValueKind::kActivation:
      case ValueKind::kOutput:
        if (plan.offsets[i] >= 0) address = static_cast<std::byte*>(arena) + plan.offsets[i];
        break;
      case ValueKind::kInput:
        address = input_address(context.buffers, value.name);
        if (address == nullptr) {
          return fail(ErrorCode::kInternal,
                      "program {} takes input {}, which this worker does not provide; it has "
                      "token_ids, positions, kv_slots, logit_index",
                      context.program->name, value.name);
        }
        break;
      case ValueKind::kState:
        if (value.layer < 0 || static_cast<size_t>(value.layer) >= caches.size()) {
          return fail(ErrorCode::kInternal, "program {}: state {} belongs to layer {} of {}",
                      context.program->name, value.name, value.layer, caches.size());
        }
        address = caches[static_cast<size_t>(value.layer)];
        break;
      case ValueKind::kWeight:
        break;
    }
  }
  return {};
}

}  // namespace refrain::worker
