// Many seeds: arrivals, cancels, stop strings, slow answers and lost ranks in any order. Whatever
// happens, every accepted request ends exactly once, with a part of its own solo run (I1, I3, I5).
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Answer;
using testing::EngineWorld;
using testing::MockRankOptions;
using testing::prompt_of;

struct Asked {
  std::vector<TokenId> prompt;
  int64_t max_tokens = 0;
};

class Story {
 public:
  explicit Story(uint64_t seed) : world_(2, seed), faults_(seed % 2 == 1) {
    options_.num_kv_blocks = 17 + static_cast<int64_t>(world_.scheduler.random(12));
    options_.eos_every = 25;
    world_.start();
    world_.add_ranks(options_);
  }

  void run() {
    for (int i = 0; i < 60; ++i) {
      act();
      const uint64_t turns = world_.scheduler.random(25);
      for (uint64_t turn = 0; turn < turns; ++turn) world_.scheduler.run_one();
    }
    world_.scheduler.run_until_idle();
    if (world_.engine->stats().state != GroupState::kReady) {
      world_.add_ranks(options_);
      world_.scheduler.run_until_idle();
    }
  }

  void check() {
    ASSERT_EQ(world_.engine->stats().state, GroupState::kReady)
        << world_.engine->stats().state_detail;
    for (const auto& [id, asked] : asked_) {
      const Answer& answer = world_.answers[id];
      ASSERT_EQ(answer.finishes, 1) << "request " << id;
      const std::vector<TokenId> alone =
          world_.expected(asked.prompt, static_cast<size_t>(asked.max_tokens), 25);
      ASSERT_LE(answer.tokens.size(), alone.size());
      ASSERT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), alone.begin()));
      if (answer.finish == FinishReason::kLength || answer.finish == FinishReason::kStop) {
        ASSERT_EQ(answer.tokens.size(), alone.size());
      }
      if (answer.finish == FinishReason::kError) {
        ASSERT_TRUE(faults_) << answer.error->message;
      }
    }
    const EngineStats stats = world_.engine->stats();
    EXPECT_EQ(stats.blocks_free, stats.blocks_total);
    EXPECT_EQ(stats.requests_total, asked_.size());
    EXPECT_EQ(world_.completed() + stats.requests_aborted + stats.requests_failed, asked_.size());
  }

  std::vector<std::string> log() const { return world_.scheduler.log(); }

 private:
  void act() {
    const uint64_t choice = world_.scheduler.random(faults_ ? 11 : 10);
    if (choice < 6) {
      Asked asked;
      asked.prompt = prompt_of(1 + world_.scheduler.random(40),
                               static_cast<TokenId>(1 + 20 * world_.scheduler.random(3)));
      asked.max_tokens = static_cast<int64_t>(1 + world_.scheduler.random(20));
      const RequestId id = world_.submit(asked.prompt, asked.max_tokens);
      asked_[id] = asked;
    } else if (choice < 8) {
      if (!asked_.empty()) world_.engine->cancel(1 + world_.scheduler.random(asked_.size()));
    } else if (choice < 10) {
      world_.scheduler.advance(std::chrono::milliseconds(world_.scheduler.random(400)));
    } else {
      lose_a_rank();
    }
  }
  // The process dies; its watcher tells, and a new pair of workers comes.
  void lose_a_rank() {
    world_.kill(*world_.ranks[world_.ranks.size() - 1 - world_.scheduler.random(2)]);
    world_.add_ranks(options_);
  }

  EngineWorld world_;
  bool faults_;
  MockRankOptions options_;
  std::map<RequestId, Asked> asked_;
};

TEST(EngineSeeds, EveryRequestEndsOnceWithItsOwnTokens) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Story story(seed);
    story.run();
    story.check();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(EngineSeeds, TheSameSeedTellsTheSameStory) {
  const auto tell = [](uint64_t seed) {
    Story story(seed);
    story.run();
    return story.log();
  };
  EXPECT_EQ(tell(7), tell(7));
  EXPECT_NE(tell(7), tell(8));
}

}  // namespace
}  // namespace refrain
