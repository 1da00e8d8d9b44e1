#pragma once
// An engine with two groups of one mock rank each.

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine_actor/engine_world.h"

namespace refrain::testing {

inline std::vector<TokenId> prompt_of(TokenId first) { return {first, 2, 3, 4, 5}; }

class TwoGroups : public ::testing::TestWithParam<uint64_t> {
 protected:
  explicit TwoGroups(uint64_t seed = 0) : world_(1, seed) { world_.config.data_parallel_size = 2; }

  MockRank& add_worker(int32_t group) {
    MockRankOptions options;
    options.pid = next_pid_++;
    options.draws = true;
    const std::string name = "group-" + std::to_string(options.pid);
    auto endpoint = world_.hub->make_client(world_.scheduler.make_executor(name), name);
    world_.ranks.push_back(std::make_unique<MockRank>(std::move(*endpoint), options));
    ipc::Hello hello;
    hello.group = group;
    hello.build_id = options.build_id;
    hello.model_digest = options.model_digest;
    hello.pid = options.pid;
    hello.host = hello.realm = "here";
    hello.process_start = options.process_start;
    world_.ranks.back()->say(hello);
    return *world_.ranks.back();
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
};

}  // namespace refrain::testing
