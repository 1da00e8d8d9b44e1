#pragma once
// What a coordinator's successor must find: the ranks of a ready group are adopted, in time,
// and all of them; told of events by the Cluster, which owns it.

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/sim/sim_device.h"

namespace refrain::sim {

class Succession {
 public:
  // `notice`: how long workers take to see that the coordinator is gone. `promised`: nothing else
  // goes wrong, so that adoption must succeed.
  Succession(Duration notice, bool promised) : notice_(notice), promised_(promised) {}

  void group_ready(TimePoint now, const std::vector<const SimDevice*>& ranks);
  void group_gone() { adoptable_ = false; }  // lost, or its processes are killed
  void coordinator_gone(TimePoint now) { gone_at_ = now; }
  void coordinator_started(TimePoint now);

  bool adoptable() const { return adoptable_; }  // all ranks hold the graphs of one group
  int adoptions() const { return adoptions_; }
  std::vector<std::string> violations;

 private:
  static constexpr Duration kReadyWithin = std::chrono::seconds(3);

  const Duration notice_;
  const bool promised_;
  bool adoptable_ = false;
  std::optional<TimePoint> gone_at_, due_;
  int adoptions_ = 0;
};

}  // namespace refrain::sim
