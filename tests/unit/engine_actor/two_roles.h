#pragma once
// An engine with a prefill and a decode group of mock ranks, which pull blocks from each other.

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine_actor/engine_world.h"

namespace refrain::testing {

inline std::vector<TokenId> prompt_from(TokenId first, size_t length = 10) {
  std::vector<TokenId> prompt = {first};
  while (prompt.size() < length) prompt.push_back(static_cast<TokenId>(prompt.size() + 1));
  return prompt;
}

class Roles : public ::testing::TestWithParam<uint64_t> {
 protected:
  explicit Roles(uint64_t seed = 0) : world_(1, seed) {
    world_.config.prefill_groups = 1;
    world_.config.decode_groups = 1;
    world_.config.worker.kv_transfer = true;
    world_.config.kv_transfer_policy = "always";
  }

  MockRank& add_worker(int32_t group, int32_t rank = 0, int32_t ranks = 1) {
    MockRankOptions options;
    options.group = group;
    options.rank = rank;
    options.pid = next_pid_++;
    options.draws = true;
    options.num_kv_blocks = blocks_;
    options.tensor_parallel_size = ranks;
    MockRank& added = world_.add_rank(options);
    added.find_rank = [this](int64_t pid) {
      for (const auto& each : world_.ranks)
        if (each->options.pid == pid) return each.get();
      return static_cast<MockRank*>(nullptr);
    };
    return added;
  }
  void start_both() {
    world_.start();
    prefill_ = &add_worker(0);
    decode_ = &add_worker(1);
    world_.scheduler.run_until_idle();
    for (const GroupStats& group : world_.engine->stats().groups)
      ASSERT_EQ(group.state, GroupState::kReady) << group.state_detail;
  }
  GroupStats group(size_t index) { return world_.engine->stats().groups.at(index); }
  void expect_answer(RequestId id, const std::vector<TokenId>& prompt, size_t tokens) {
    const Answer& answer = world_.answers[id];
    EXPECT_EQ(answer.finishes, 1) << "request " << id;
    ipc::SlotSetup greedy;
    greedy.temperature = 0;
    EXPECT_EQ(answer.tokens, solo_run(prompt, tokens, 64, 500, 0, greedy, true))
        << "request " << id;
    EXPECT_FALSE(answer.error.has_value()) << answer.error->message;
  }
  RequestId submit(const std::vector<TokenId>& prompt, int64_t tokens) {
    SamplingParams sampling;
    sampling.max_tokens = tokens;
    sampling.temperature = 0;
    return world_.submit(prompt, sampling);
  }
  // Requests of 14 tokens each, all different.
  std::vector<RequestId> submit_all(TokenId count, int64_t tokens) {
    std::vector<RequestId> ids;
    for (TokenId i = 0; i < count; ++i) ids.push_back(submit(prompt_from(10 + i, 14), tokens));
    return ids;
  }
  void expect_answers(const std::vector<RequestId>& ids, size_t tokens) {
    for (size_t i = 0; i < ids.size(); ++i)
      expect_answer(ids[i], prompt_from(10 + static_cast<TokenId>(i), 14), tokens);
  }
  void expect_nothing_left() {
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(group(i).steps_in_flight, 0u);
      EXPECT_EQ(group(i).leases, 0u);
      EXPECT_EQ(group(i).transfers.running, 0u);
      EXPECT_EQ(group(i).transfers.quarantined, 0u);
      EXPECT_EQ(group(i).blocks_free, group(i).blocks_total) << "group " << i;
    }
  }
  // The rank's process dies; a new one comes.
  void lose(MockRank*& rank) {
    const int32_t group = rank->options.group;
    world_.kill(*rank);
    world_.scheduler.advance(std::chrono::milliseconds(50));
    rank = &add_worker(group);
    world_.scheduler.run_until_idle();
  }

  EngineWorld world_;
  MockRank* prefill_ = nullptr;
  MockRank* decode_ = nullptr;
  int64_t next_pid_ = 500;
  int64_t blocks_ = 64;
};

inline bool computes_prompts(const MockRank& rank) {
  for (const ipc::Step& step : rank.steps)
    for (const int32_t tokens : step.runs.front().rows.num_tokens)
      if (tokens > 1) return true;
  return false;
}

}  // namespace refrain::testing
