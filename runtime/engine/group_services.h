#pragma once
// The services of all groups of workers, by the group's number. Owned by the engine, on its
// executor.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/engine/group_service.h"

namespace refrain {

class GroupServices {
 public:
  void add(std::shared_ptr<GroupService> service) { all_.push_back(std::move(service)); }
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
  uint64_t waiting() const {  // requests in schedulers that do not run yet
    uint64_t sum = 0;
    for (const auto& each : all_)
      if (each->ready()) sum += each->waiting();
    return sum;
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
};

}  // namespace refrain
