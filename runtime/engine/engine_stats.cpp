#include "runtime/engine/engine_stats.h"

#include <time.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {

double thread_cpu_us() {
  timespec now{};
  const int failed = clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  REFRAIN_CHECK(failed == 0, "the thread's CPU clock cannot be read");
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

void StatsBoard::change(const std::function<void(EngineStats&)>& edit) {
  const std::lock_guard lock(mutex_);
  edit(stats_);
}

void StatsBoard::step_done(const ipc::StepResult& result, size_t num_new_tokens) {
  const std::lock_guard lock(mutex_);
  const bool graph = result.mode != ipc::RuntimeMode::kNone;
  ++uses_[{result.mode, result.num_tokens, graph ? result.key_tokens : result.num_tokens}];
  ++stats_.steps;
  stats_.generated_tokens += num_new_tokens;
}

void StatsBoard::audited(const ipc::AuditResult& audit) {
  change([&audit](EngineStats& stats) {
    ++stats.audited_steps;
    stats.audit_differences += static_cast<uint64_t>(audit.differences);
    stats.audit_worst_logit = std::max<double>(stats.audit_worst_logit, audit.worst_logit);
    stats.audit_worst_kv = std::max<double>(stats.audit_worst_kv, audit.worst_kv);
    if (stats.audit_first.empty()) stats.audit_first = audit.first;
  });
}

void StatsBoard::answered(TimePoint now) {
  const std::lock_guard lock(mutex_);
  last_answer_ = now;
}

void StatsBoard::progressed(TimePoint now) {
  const std::lock_guard lock(mutex_);
  last_progress_ = now;
}

EngineHealth StatsBoard::health() const {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  return {stats_.state,
          stats_.state_detail,
          stats_.epoch,
          seconds_between(last_answer_, now),
          seconds_between(std::max(last_answer_, last_progress_), now),
          stats_.requests_running,
          stats_.requests_waiting};
}

void StatsBoard::ended(FinishReason reason) {
  const std::lock_guard lock(mutex_);
  switch (reason) {
    case FinishReason::kStop:
      ++stats_.requests_stopped;
      return;
    case FinishReason::kLength:
      ++stats_.requests_at_length;
      return;
    case FinishReason::kAbort:
      ++stats_.requests_aborted;
      return;
    case FinishReason::kError:
      ++stats_.requests_failed;
      return;
    case FinishReason::kNone:
      break;
  }
  REFRAIN_CHECK(false, "a request ended for no reason");
}

void StatsBoard::add_step_cpu(double microseconds) {
  constexpr double kWeight = 0.05;
  const std::lock_guard lock(mutex_);
  double& average = stats_.coordinator_us_per_step;
  average = average == 0 ? microseconds : average + kWeight * (microseconds - average);
}

EngineStats StatsBoard::snapshot() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.seconds_since_last_answer = seconds_between(last_answer_, clock_.now());
  std::set<std::pair<std::string, int32_t>> used;
  for (const auto& [use, count] : uses_) {
    const auto& [mode, tokens, padded] = use;
    stats.graph_uses.push_back({ipc::to_string(mode), tokens, padded, count});
    used.emplace(ipc::to_string(mode), padded);
  }
  if (!stats_.ready.empty())
    for (const ipc::ManifestEntry& key : stats_.ready.front().manifest)
      if (used.emplace(key.mode, key.num_tokens).second)
        stats.graph_uses.push_back({key.mode, 0, key.num_tokens, 0});
  std::ranges::stable_sort(stats.graph_uses, std::greater{}, &GraphUse::count);
  return stats;
}

}  // namespace refrain
