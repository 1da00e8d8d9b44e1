// CG-29: the addresses that launches hold, so that a replay can be held against its capture.

#include "worker/graph/interpreter.h"
#include "worker/program/fields.h"

namespace refrain::worker {
namespace {

class Collector {
 public:
  explicit Collector(const OpContext& context) : c_(context) {}

  std::vector<ArgAddress> take() { return std::move(found_); }

  void visit(int index, const Op& op) {
    op_ = index;
    visit_fields(op, [&](ValueId id, Access, const char* field) {
      if (id != kNoValue) add(field, value_address(id), id);
    });
    const bool prepares = std::holds_alternative<PrepareInputsOp>(op);
    const bool attends =
        std::holds_alternative<AttentionOp>(op) || std::holds_alternative<RopeAttentionOp>(op);
    const bool samples = std::holds_alternative<SampleOp>(op);
    if (prepares) {
      for (const uint8_t* block : c_.buffers.blocks) add("block", block);
      add("block_copy", c_.buffers.block_copy);
    }
    if (prepares || attends || samples) add_inputs(c_.buffers.inputs);
    if (prepares || samples) add_slots(c_.buffers.slots);
    if (attends) add("block_table", c_.buffers.slots.block_table);
    if (!samples) return;
    for (const kernels::SampleOutputs& out : c_.buffers.outputs) add_outputs(out);
    add("scratch", c_.buffers.sample_scratch);
  }

 private:
  void add(const char* arg, const void* address, ValueId value = kNoValue) {
    found_.push_back({op_, arg, value, address});
  }
  const void* value_address(ValueId id) const {
    if (c_.program->value(id).kind != ValueKind::kWeight) {
      return c_.addresses[static_cast<size_t>(id)];
    }
    const LoadedWeight& weight = c_.weights->by_value[static_cast<size_t>(id)];
    return weight.vector != nullptr ? weight.vector : weight.matrix.data;
  }
  void add_inputs(const kernels::BatchInputs& in) {
    add("inputs.turn", in.turn);
    add("inputs.live_tokens", in.live_tokens);
    add("inputs.live_reqs", in.live_reqs);
    add("inputs.live_logits", in.live_logits);
    add("inputs.token_ids", in.token_ids);
    add("inputs.positions", in.positions);
    add("inputs.token_row", in.token_row);
    add("inputs.kv_slots", in.kv_slots);
    add("inputs.query_start", in.query_start);
    add("inputs.seq_lens", in.seq_lens);
    add("inputs.row_slot", in.row_slot);
    add("inputs.logit_index", in.logit_index);
    add("inputs.row_flags", in.row_flags);
  }
  void add_slots(const kernels::SlotState& slots) {
    add("slots.last_token", slots.last_token);
    add("slots.block_table", slots.block_table);
    add("slots.params", slots.params);
    add("slots.output_count", slots.output_count);
    add("slots.in_prompt", slots.in_prompt);
    add("slots.bias_token", slots.bias_token);
    add("slots.bias_value", slots.bias_value);
    add("slots.allowed_mask", slots.allowed_mask);
  }
  void add_outputs(const kernels::SampleOutputs& out) {
    add("outputs.turn", out.turn);
    add("outputs.tokens", out.tokens);
    add("outputs.logprobs", out.logprobs);
    add("outputs.top_tokens", out.top_tokens);
    add("outputs.top_logprobs", out.top_logprobs);
  }

  const OpContext& c_;
  std::vector<ArgAddress> found_;
  int op_ = 0;
};

}  // namespace

std::vector<ArgAddress> collect_addresses(const OpContext& context, OpRange ops) {
  Collector collector(context);
  for (int i = ops.begin; i < ops.end; ++i) {
    collector.visit(i, context.program->ops[static_cast<size_t>(i)]);
  }
  return collector.take();
}

std::string describe_moved(const Program& program, const std::vector<ArgAddress>& captured,
                           const std::vector<ArgAddress>& now) {
  for (size_t i = 0; i < captured.size() && i < now.size(); ++i) {
    const ArgAddress &was = captured[i], &is = now[i];
    if (was.address == is.address) continue;
    const std::string value =
        was.value == kNoValue ? "" : fmt::format(" ({})", program.value(was.value).name);
    return fmt::format("op {} {}: argument {}{} was at {} when captured and is at {} now", was.op,
                       op_name(program.ops[static_cast<size_t>(was.op)]), was.arg, value,
                       was.address, is.address);
  }
  if (captured.size() != now.size()) {
    return fmt::format("{} addresses were captured and {} are in use now", captured.size(),
                       now.size());
  }
  return {};
}

}  // namespace refrain::worker
