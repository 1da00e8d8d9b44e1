#pragma once
// An engine with two groups of one mock rank each.

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine_actor/engine_world.h"

namespace refrain::testing {

inline std::vector<TokenId> group_prompt(TokenId first) { return {first, 2, 3, 4, 5}; }

class TwoGroups : public ::testing::TestWithParam<uint64_t> {
 protected:
  explicit TwoGroups(uint64_t seed = 0) : world_(1, seed) { world_.config.data_parallel_size = 2; }

  MockRank& add_worker(int32_t group) {
    MockRankOptions options;
    options.group = group;
    options.pid = next_pid_++;
    options.draws = true;
    options.steps_together = steps_together_;
    return world_.add_rank(options);
  }
  void start_both() {
    world_.start();
    first_ = &add_worker(0);
    second_ = &add_worker(1);
    world_.scheduler.run_until_idle();
    const EngineStats stats = world_.engine->stats();
    ASSERT_EQ(stats.groups.size(), 2u);
    for (const GroupStats& group : stats.groups)
      ASSERT_EQ(group.state, GroupState::kReady) << group.state_detail;
  }
  GroupStats group(size_t index) { return world_.engine->stats().groups.at(index); }

  EngineWorld world_;
  MockRank* first_ = nullptr;
  MockRank* second_ = nullptr;
  int64_t next_pid_ = 500;
  bool steps_together_ = false;
};

}  // namespace refrain::testing
