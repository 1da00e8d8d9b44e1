#pragma once
// The services of all groups of workers, by the group's number. Owned by the engine, on its
// executor.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/engine/group_service.h"

namespace refrain {

class GroupServices {
 public:
  void add(std::shared_ptr<GroupService> service) {
    all_.push_back(std::move(service));
    counted_.push_back(0);
  }
  int32_t size() const { return static_cast<int32_t>(all_.size()); }
  GroupService& operator[](int32_t index) { return *all_[static_cast<size_t>(index)]; }
  const GroupService& operator[](int32_t index) const { return *all_[static_cast<size_t>(index)]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

  bool any_ready() const {
    return std::ranges::any_of(all_, [](const auto& each) { return each->ready(); });
  }
  bool all_failed() const {
    return std::ranges::all_of(all_, [](const auto& each) { return each->failed(); });
  }
  // Requests in schedulers that do not run yet: of this group now, of the others when they were
  // counted last. A step of one among many groups does not ask them all.
  uint64_t count_waiting(int32_t group) {
    const GroupService& service = (*this)[group];
    const uint64_t now = service.ready() ? service.waiting() : 0;
    waiting_ += now - std::exchange(counted_[static_cast<size_t>(group)], now);
    return waiting_;
  }
  // Any thread, after the last add().
  std::vector<GroupStats> stats() const {
    std::vector<GroupStats> stats;
    for (const auto& each : all_) stats.push_back(each->stats().snapshot());
    return stats;
  }
  std::vector<EngineHealth> health() const {
    std::vector<EngineHealth> health;
    for (const auto& each : all_) health.push_back(each->stats().health());
    return health;
  }
  std::vector<GroupState> states() const {
    std::vector<GroupState> states;
    for (const auto& each : all_) states.push_back(each->state());
    return states;
  }

 private:
  std::vector<std::shared_ptr<GroupService>> all_;
  std::vector<uint64_t> counted_;  // by group: those that wait
  uint64_t waiting_ = 0;           // their sum
};

}  // namespace refrain
