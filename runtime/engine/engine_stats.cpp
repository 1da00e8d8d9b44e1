#include "runtime/engine/engine_stats.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include "ipc/protocol/manifest_mode.h"
#include "runtime/base/check.h"

namespace refrain {

double thread_cpu_us() {
  timespec now{};
  const int failed = clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  REFRAIN_CHECK(failed == 0, "the thread's CPU clock cannot be read");
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

void StatsBoard::change(const std::function<void(GroupStats&)>& edit) {
  const std::lock_guard lock(mutex_);
  edit(stats_);
}

void StatsBoard::step_done(const ipc::StepResult& result, size_t num_new_tokens) {
  const std::lock_guard lock(mutex_);
  const bool graph = result.mode != ipc::RuntimeMode::kNone;
  ++uses_[{result.mode, result.num_tokens, graph ? result.key_tokens : result.num_tokens,
           result.key_lora}];
  ++stats_.steps;
  stats_.generated_tokens += num_new_tokens;
}

void StatsBoard::audited(const ipc::AuditResult& audit) {
  change([&audit](GroupStats& stats) {
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

void RequestBoard::ended(FinishReason reason) {
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

GroupStats StatsBoard::snapshot() const {
  const std::lock_guard lock(mutex_);
  GroupStats stats = stats_;
  stats.seconds_since_last_answer = seconds_between(last_answer_, clock_.now());
  std::set<std::tuple<std::string, int32_t, bool>> used;
  for (const auto& [use, count] : uses_) {
    const auto& [mode, tokens, padded, lora] = use;
    stats.graph_uses.push_back({ipc::to_string(mode), tokens, padded, count, lora});
    used.emplace(ipc::to_string(mode), padded, lora);
  }
  if (!stats_.ready.empty())
    for (const ipc::ManifestEntry& key : stats_.ready.front().manifest)
      if (!key.mode.starts_with(ipc::kDraftMode) &&
          used.emplace(key.mode, key.num_tokens, key.has_lora).second)
        stats.graph_uses.push_back({key.mode, 0, key.num_tokens, 0, key.has_lora});
  std::ranges::stable_sort(stats.graph_uses, std::greater{}, &GraphUse::count);
  return stats;
}

void RequestBoard::change(const std::function<void(EngineStats&)>& edit) {
  const std::lock_guard lock(mutex_);
  edit(stats_);
}

EngineStats RequestBoard::snapshot() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

namespace {

// "group 0 ready: 1 rank ready; group 1 waiting: the process of rank 0 ended"
std::string all_details(const std::vector<GroupStats>& groups) {
  std::string text;
  for (const GroupStats& group : groups)
    text += fmt::format("{}group {} {}{}{}", text.empty() ? "" : "; ", group.group,
                        to_string(group.state), group.state_detail.empty() ? "" : ": ",
                        group.state_detail);
  return text;
}

// The same batch of several groups is one row.
void add_uses(const std::vector<GraphUse>& from, std::vector<GraphUse>& to) {
  for (const GraphUse& use : from) {
    const auto same = std::ranges::find_if(to, [&](const GraphUse& other) {
      return other.mode == use.mode && other.num_tokens == use.num_tokens &&
             other.padded_tokens == use.padded_tokens && other.has_lora == use.has_lora;
    });
    if (same == to.end()) {
      to.push_back(use);
    } else {
      same->count += use.count;
    }
  }
}

void add(const GroupStats& group, GroupStats& all) {
  all.epoch = std::max(all.epoch, group.epoch);
  all.requests_running += group.requests_running;
  all.requests_waiting += group.requests_waiting;
  all.prompt_tokens += group.prompt_tokens;
  all.generated_tokens += group.generated_tokens;
  all.cached_prompt_tokens += group.cached_prompt_tokens;
  all.preemptions += group.preemptions;
  all.steps += group.steps;
  all.cascade_steps += group.cascade_steps;
  all.group_restarts += group.group_restarts;
  all.drafts = all.drafts + group.drafts;
  all.audited_steps += group.audited_steps;
  all.audit_differences += group.audit_differences;
  all.audit_worst_logit = std::max(all.audit_worst_logit, group.audit_worst_logit);
  all.audit_worst_kv = std::max(all.audit_worst_kv, group.audit_worst_kv);
  if (all.audit_first.empty()) all.audit_first = group.audit_first;
  all.blocks_total += group.blocks_total;
  all.blocks_free += group.blocks_free;
  all.steps_in_flight += group.steps_in_flight;
  all.leases += group.leases;
  all.leases_expired += group.leases_expired;
  all.transfers = all.transfers + group.transfers;
  all.seconds_since_last_answer =
      std::min(all.seconds_since_last_answer, group.seconds_since_last_answer);
  all.coordinator_us_per_step =
      std::max(all.coordinator_us_per_step, group.coordinator_us_per_step);
  add_uses(group.graph_uses, all.graph_uses);
  all.ready.insert(all.ready.end(), group.ready.begin(), group.ready.end());
  all.devices.insert(all.devices.end(), group.devices.begin(), group.devices.end());
}

}  // namespace

GroupState best_of(const std::vector<GroupState>& states) {
  for (const GroupState state :
       {GroupState::kReady, GroupState::kStarting, GroupState::kWaiting, GroupState::kFailed})
    if (std::ranges::find(states, state) != states.end()) return state;
  return GroupState::kStopped;
}

EngineStats combine(EngineStats requests, std::vector<GroupStats> groups) {
  std::vector<GroupState> states;
  states.reserve(groups.size());
  for (const GroupStats& group : groups) states.push_back(group.state);
  GroupStats all = groups.front();
  for (const GroupStats& group : std::span(groups).subspan(1)) add(group, all);
  if (groups.size() > 1) {
    all.state = best_of(states);
    all.state_detail = all_details(groups);
    std::ranges::stable_sort(all.graph_uses, std::greater{}, &GraphUse::count);
  }
  all.requests_waiting += requests.requests_queued;
  static_cast<GroupStats&>(requests) = std::move(all);
  requests.groups = std::move(groups);
  return requests;
}

// A group that does not answer is its own detector's to find: the server is well as long as one
// that is ready does.
EngineHealth combine(const std::vector<EngineHealth>& groups, uint64_t requests_queued) {
  std::vector<GroupState> states;
  states.reserve(groups.size());
  for (const EngineHealth& group : groups) states.push_back(group.state);
  EngineHealth all = groups.front();
  all.state = best_of(states);
  if (groups.size() > 1) all.groups = states;
  bool first = true;
  for (const EngineHealth& group : groups) {
    if (group.state == all.state) {
      const auto least = [first](double& to, double from) {
        to = first ? from : std::min(to, from);
      };
      least(all.seconds_since_last_answer, group.seconds_since_last_answer);
      least(all.seconds_since_progress, group.seconds_since_progress);
      if (std::exchange(first, false)) all.state_detail = group.state_detail;
    }
    if (&group == &groups.front()) continue;
    all.epoch = std::max(all.epoch, group.epoch);
    all.requests_running += group.requests_running;
    all.requests_waiting += group.requests_waiting;
  }
  all.requests_waiting += requests_queued;
  return all;
}

}  // namespace refrain
