#include "ipc/protocol/shape_check.h"

namespace refrain::ipc {
namespace {

const char* check(const Step& step) {
  const size_t rows = step.row_slot.size();
  if (step.row_num_tokens.size() != rows || step.row_computed.size() != rows ||
      step.row_flags.size() != rows)
    return "row_slot, row_num_tokens, row_computed and row_flags differ in length";
  uint64_t tokens = 0;
  bool negative = false;
  for (const int32_t count : step.row_num_tokens) {
    negative |= count < 0;
    tokens += static_cast<uint32_t>(count);
  }
  if (negative) return "a row schedules fewer than 0 tokens";
  if (tokens != step.token_ids.size()) return "row_num_tokens does not add up to token_ids";
  if (step.block_index.size() != step.block_slot.size() ||
      step.block_id.size() != step.block_slot.size())
    return "block_slot, block_index and block_id differ in length";
  for (const SlotSetup& setup : step.setups)
    if (setup.bias_tokens.size() != setup.bias_values.size())
      return "bias_tokens and bias_values differ in length";
  return nullptr;
}

const char* check(const StepResult& result) {
  if (!result.logprobs.empty() && result.logprobs.size() != result.tokens.size())
    return "logprobs and tokens differ in length";
  if (result.top_tokens.size() != result.top_logprobs.size())
    return "top_tokens and top_logprobs differ in length";
  if (result.top_offsets.empty())
    return result.top_tokens.empty() ? nullptr : "top_tokens without top_offsets";
  if (result.top_offsets.size() != result.tokens.size() + 1)
    return "top_offsets must have one entry more than tokens";
  int64_t previous = 0;
  for (const int32_t offset : result.top_offsets) {
    if (offset < previous) return "top_offsets must not decrease";
    previous = offset;
  }
  if (result.top_offsets.front() != 0 || static_cast<size_t>(previous) != result.top_tokens.size())
    return "top_offsets must run from 0 to the number of top_tokens";
  return nullptr;
}

const char* check(const Ready& ready) {
  return ready.memory_tags.size() == ready.memory_bytes.size()
             ? nullptr
             : "memory_tags and memory_bytes differ in length";
}

template <class T>
const char* check(const T&) {
  return nullptr;
}

}  // namespace

const char* shape_mismatch(const Message& message) {
  return std::visit([](const auto& alternative) { return check(alternative); }, message);
}

}  // namespace refrain::ipc
