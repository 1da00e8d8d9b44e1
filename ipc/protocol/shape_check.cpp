#include "ipc/protocol/shape_check.h"

#include <algorithm>

namespace refrain::ipc {
namespace {

const char* check(const Rows& rows) {
  const size_t count = rows.slot.size();
  if (rows.num_tokens.size() != count || rows.computed.size() != count ||
      rows.flags.size() != count)
    return "slot, num_tokens, computed and flags of a run differ in length";
  uint64_t tokens = 0;
  bool negative = false;
  for (const int32_t scheduled : rows.num_tokens) {
    negative |= scheduled < 0;
    tokens += static_cast<uint32_t>(scheduled);
  }
  if (negative) return "a row schedules fewer than 0 tokens";
  if (tokens != rows.token_ids.size()) return "num_tokens of a run does not add up to token_ids";
  const auto telling = std::ranges::count_if(rows.flags, [](uint8_t flags) {
    return (flags & (RowFlag::kScores | RowFlag::kContinues)) != 0;
  });
  if (static_cast<size_t>(telling) != rows.next_tokens.size())
    return "the rows that score or continue and next_tokens differ in number";
  return nullptr;
}

const char* check(const Step& step) {
  for (const Run& run : step.runs)
    if (const char* wrong = check(run.rows)) return wrong;
  for (const BlockUpdates& group : step.blocks)
    if (group.index.size() != group.slot.size() || group.block.size() != group.slot.size())
      return "slot, index and block of a state group's blocks differ in length";
  for (const SlotSetup& setup : step.setups)
    if (setup.bias_tokens.size() != setup.bias_values.size())
      return "bias_tokens and bias_values differ in length";
  return nullptr;
}

bool run_from_0_to(const std::vector<int32_t>& offsets, size_t last) {
  return offsets.front() == 0 && std::ranges::is_sorted(offsets) &&
         static_cast<size_t>(offsets.back()) == last;
}

const char* check(const PromptScores& prompt) {
  if (prompt.ranks.size() != prompt.logprobs.size())
    return "ranks and logprobs of prompt tokens differ in length";
  if (prompt.top_tokens.size() != prompt.top_logprobs.size())
    return "top_tokens and top_logprobs of prompt tokens differ in length";
  if (prompt.top_offsets.empty())
    return prompt.logprobs.empty() && prompt.top_tokens.empty()
               ? nullptr
               : "logprobs of prompt tokens without top_offsets";
  if (prompt.top_offsets.size() != prompt.logprobs.size() + 1 ||
      !run_from_0_to(prompt.top_offsets, prompt.top_tokens.size()))
    return "top_offsets of prompt tokens must not decrease and run from 0 to their number";
  return nullptr;
}

const char* check(const StepResult& result) {
  if (const char* wrong = check(result.prompt)) return wrong;
  const size_t rows = result.token_offsets.empty() ? 0 : result.token_offsets.size() - 1;
  if (!result.drafted.empty() && result.drafted.size() != rows)
    return "drafted and the rows differ in length";
  if (!result.pooled.empty() &&
      (result.tokens.empty() || result.pooled.size() % result.tokens.size() != 0))
    return "pooled is no vector for each token";
  if (!result.logprobs.empty() && result.logprobs.size() != result.tokens.size())
    return "logprobs and tokens differ in length";
  if (result.top_tokens.size() != result.top_logprobs.size())
    return "top_tokens and top_logprobs differ in length";
  if (result.token_offsets.empty()) {
    if (!result.tokens.empty()) return "tokens without token_offsets";
  } else if (!run_from_0_to(result.token_offsets, result.tokens.size())) {
    return "token_offsets must not decrease and run from 0 to the number of tokens";
  }
  if (result.top_offsets.empty())
    return result.top_tokens.empty() ? nullptr : "top_tokens without top_offsets";
  if (result.top_offsets.size() != result.tokens.size() + 1)
    return "top_offsets must have one entry more than tokens";
  if (!run_from_0_to(result.top_offsets, result.top_tokens.size()))
    return "top_offsets must not decrease and run from 0 to the number of top_tokens";
  return nullptr;
}

const char* check(const Ready& ready) {
  return ready.memory_tags.size() == ready.memory_bytes.size()
             ? nullptr
             : "memory_tags and memory_bytes differ in length";
}

const char* check(const PullBlocks& pull) {
  for (const KvBlocks& blocks : pull.blocks)
    if (blocks.from.size() != blocks.to.size())
      return "from and to of a state group's blocks differ in length";
  return nullptr;
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
