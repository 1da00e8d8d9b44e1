#pragma once
// What a seed chooses: the shape of the server, the load, how bad the lines are and which faults
// strike when.

#include <memory>
#include <vector>

#include "tests/sim/clients.h"
#include "tests/sim/cluster.h"

namespace refrain::sim {

struct Plan {
  ClusterOptions cluster;
  LoadOptions load;
  int strikes = 0;       // faults
  bool harmless = true;  // nothing in it may cost a group or a request
};

Plan make_plan(ManualScheduler& scheduler);

// Posts the plan's faults, at random times within `over`.
class Chaos {
 public:
  Chaos(ManualScheduler& scheduler, Cluster& cluster, const Plan& plan);
  void start(int strikes, Duration over);

 private:
  void strike();
  void strike_calmly();
  void strike_rank();
  void strike_coordinator();
  void restart_group();
  void strike_succession();
  int32_t any_rank();  // of any group, as a place
  Duration absence();

  ManualScheduler& scheduler_;
  Cluster& cluster_;
  const Plan& plan_;
  std::shared_ptr<Executor> executor_;
};

}  // namespace refrain::sim
