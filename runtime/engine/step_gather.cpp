#include "runtime/engine/step_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/handshake.h"

namespace refrain {

size_t StepDeadline::size_class(size_t num_tokens) {
  return std::min<size_t>(static_cast<size_t>(std::bit_width(num_tokens)), kClasses - 1);
}

void StepDeadline::observe(size_t num_tokens, Duration took) {
  Sizes& sizes = classes_[size_class(num_tokens)];
  sizes.recent[sizes.seen++ % kWindow] = took;
  if (sizes.seen % kEnough != 0) return;
  auto window = sizes.recent;
  const size_t count = std::min(sizes.seen, kWindow);
  const auto slow = window.begin() + static_cast<ptrdiff_t>((count * 99) / 100);
  std::nth_element(window.begin(), slow, window.begin() + static_cast<ptrdiff_t>(count));
  sizes.slow = *slow;
}

// The 99th percentile, measured or estimated: the work of a step grows with its tokens, at most in
// proportion.
std::optional<Duration> StepDeadline::slow_of(size_t size) const {
  for (size_t larger = size; larger < kClasses; ++larger)
    if (classes_[larger].seen >= kEnough) return classes_[larger].slow;
  for (size_t smaller = size; smaller-- > 0;)
    if (classes_[smaller].seen >= kEnough)
      return std::min<Duration>(classes_[smaller].slow * (1 << (size - smaller)), kUnknown / 20);
  return std::nullopt;
}

Duration StepDeadline::of(size_t num_tokens, bool ranks_tell) const {
  const size_t size = size_class(num_tokens);
  const Duration limit = std::max<Duration>(kLeast, 20 * slow_of(size).value_or(kUnknown / 20));
  if (ranks_tell || classes_[size].seen >= kEnough) return limit;
  return std::min<Duration>(limit, kUnseen + static_cast<int64_t>(num_tokens) * kUnseenToken);
}

Duration StepDeadline::stall(size_t num_tokens) const {
  const Duration unknown = kUnknownStall + static_cast<int64_t>(num_tokens) * kUnknownStallToken;
  return std::max<Duration>(kLeastStall, slow_of(size_class(num_tokens)).value_or(unknown));
}

void StepGather::begin_group(bool after_hang) {
  steps_.clear();
  last_done_ = 0;
  done_ = 0;
  if (after_hang) patience_ = std::min(2 * patience_, kMostPatience);
}

void StepGather::sent(const ipc::Step& step, TimePoint now) {
  Waiting waiting;
  waiting.step = step.step;
  waiting.num_tokens = static_cast<size_t>(ipc::num_tokens(step));
  waiting.since = now;
  waiting.answers.resize(num_ranks_);
  steps_.push_back(std::move(waiting));
}

namespace {

ipc::AuditResult of_all_ranks(const std::vector<ipc::StepResult>& answers) {
  ipc::AuditResult all;
  for (const ipc::StepResult& answer : answers) {
    const ipc::AuditResult& one = answer.audit;
    all.audited = all.audited || one.audited;
    all.differences += one.differences;
    all.worst_logit = std::max(all.worst_logit, one.worst_logit);
    all.worst_kv = std::max(all.worst_kv, one.worst_kv);
    if (all.first.empty() && !one.first.empty())
      all.first = fmt::format("rank {}, {}", answer.rank, one.first);
  }
  return all;
}

// A row that any rank has given up.
std::vector<int32_t> too_slow_anywhere(const std::vector<ipc::StepResult>& answers) {
  std::set<int32_t> rows;
  for (const ipc::StepResult& answer : answers)
    rows.insert(answer.too_slow.begin(), answer.too_slow.end());
  return {rows.begin(), rows.end()};
}

}  // namespace

void StepGather::restart(TimePoint now) {
  if (!steps_.empty()) steps_.front().since = now;
}

Result<std::optional<ipc::StepResult>> StepGather::add(int32_t rank, ipc::StepResult result,
                                                       TimePoint now) {
  const auto index = static_cast<size_t>(rank);
  const auto next = std::ranges::find_if(
      steps_, [index](const Waiting& waiting) { return !waiting.answers[index].has_value(); });
  if (next == steps_.end() || next->step != result.step || result.rank != rank)
    return fail(ErrorCode::kInternal, "rank {} answered step {} as rank {}; step {} was next", rank,
                result.step, result.rank, next == steps_.end() ? 0 : next->step);
  next->answers[index] = std::move(result);
  // Answers come in order per rank, so that only the oldest step can become complete.
  if (++next->answered < num_ranks_) return std::nullopt;
  REFRAIN_CHECK(next == steps_.begin(), "step {} was complete before the one before it",
                next->step);
  std::vector<ipc::StepResult> answers;
  for (auto& answer : next->answers) answers.push_back(std::move(*answer));
  deadline_.observe(next->num_tokens, now - next->since);
  last_done_ = next->step;
  if (++done_ == StepDeadline::kEnough) patience_ = 1;
  steps_.pop_front();
  if (!steps_.empty()) steps_.front().since = now;
  if (auto mismatch = key_mismatch(answers)) return fail(ErrorCode::kInternal, "{}", *mismatch);
  answers.front().audit = of_all_ranks(answers);
  answers.front().too_slow = too_slow_anywhere(answers);
  return std::move(answers.front());
}

TimePoint StepGather::deadline(bool ranks_tell) const {
  REFRAIN_CHECK(!steps_.empty(), "no step is in flight");
  return steps_.front().since + patience_ * deadline_.of(steps_.front().num_tokens, ranks_tell);
}

TimePoint StepGather::stalled(TimePoint last_progress) const {
  REFRAIN_CHECK(!steps_.empty(), "no step is in flight");
  return std::max(steps_.front().since, last_progress) +
         patience_ * deadline_.stall(steps_.front().num_tokens);
}

std::vector<int32_t> StepGather::missing() const {
  std::vector<int32_t> ranks;
  if (steps_.empty()) return ranks;
  for (size_t rank = 0; rank < num_ranks_; ++rank)
    if (!steps_.front().answers[rank]) ranks.push_back(static_cast<int32_t>(rank));
  return ranks;
}

}  // namespace refrain
