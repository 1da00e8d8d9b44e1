// Many seeds: arrivals, cancels, time that passes and lost ranks in any order. Whatever happens,
// every accepted request ends exactly once, with its own solo run, or a part of it when it was
// cancelled or alone in flight at a loss after another (I1, I2, I3, I5).
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
  SamplingParams sampling;
};

SamplingParams random_sampling(ManualScheduler& scheduler) {
  SamplingParams sampling;
  sampling.max_tokens = static_cast<int64_t>(1 + scheduler.random(20));
  sampling.temperature = 0;
  if (scheduler.random(2) == 0) {
    sampling.temperature = 0.7;
    sampling.seed = scheduler.random(1000);
  }
  if (scheduler.random(3) == 0) sampling.frequency_penalty = 0.5;
  if (scheduler.random(5) == 0) sampling.repetition_penalty = 1.2;
  return sampling;
}

ipc::SlotSetup setup_of(const SamplingParams& sampling) {
  ipc::SlotSetup setup;
  setup.temperature = static_cast<float>(sampling.temperature);
  setup.seed = sampling.seed.value_or(0);
  setup.frequency_penalty = static_cast<float>(sampling.frequency_penalty);
  setup.repetition_penalty = static_cast<float>(sampling.repetition_penalty);
  return setup;
}

class Story {
 public:
  explicit Story(uint64_t seed) : world_(2, seed), faults_(seed % 2 == 1) {
    options_.num_kv_blocks = 17 + static_cast<int64_t>(world_.scheduler.random(12));
    options_.eos_every = 25;
    options_.draws = true;
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
    // A worker that came before its predecessor was missed has been refused; others come.
    for (int i = 0; i < 3 && stats().state != GroupState::kReady; ++i) {
      world_.scheduler.advance(std::chrono::milliseconds(100));
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
          testing::solo_run(asked.prompt, static_cast<size_t>(asked.sampling.max_tokens), 64, 500,
                            25, setup_of(asked.sampling), true);
      ASSERT_LE(answer.tokens.size(), alone.size());
      ASSERT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), alone.begin()));
      if (answer.finish == FinishReason::kLength || answer.finish == FinishReason::kStop) {
        ASSERT_EQ(answer.tokens.size(), alone.size());
      }
      if (answer.finish == FinishReason::kError) {
        ASSERT_TRUE(faults_) << answer.error->message;
        ASSERT_NE(answer.error->message.find("it is not tried again"), std::string::npos)
            << answer.error->message;
      }
    }
    const EngineStats stats = world_.engine->stats();
    if (!faults_) {
      EXPECT_EQ(stats.requests_failed + stats.requests_resumed, 0u);
    }
    EXPECT_EQ(stats.blocks_free, stats.blocks_total);
    EXPECT_EQ(stats.requests_total, asked_.size());
    EXPECT_EQ(world_.completed() + stats.requests_aborted + stats.requests_failed, asked_.size());
  }

  std::vector<std::string> log() const { return world_.scheduler.log(); }
  EngineStats stats() const { return world_.engine->stats(); }

 private:
  void act() {
    const uint64_t choice = world_.scheduler.random(faults_ ? 11 : 10);
    if (choice < 6) {
      Asked asked;
      asked.prompt = prompt_of(1 + world_.scheduler.random(40),
                               static_cast<TokenId>(1 + 20 * world_.scheduler.random(3)));
      asked.sampling = random_sampling(world_.scheduler);
      const RequestId id = world_.submit(asked.prompt, asked.sampling);
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

#if defined(REFRAIN_ASAN)
constexpr uint64_t kSeeds = 50;
#elif defined(REFRAIN_TSAN)  // one thread runs it all
constexpr uint64_t kSeeds = 20;
#else
constexpr uint64_t kSeeds = 300;
#endif

TEST(EngineSeeds, EveryRequestEndsOnceWithItsOwnTokens_R8) {
  uint64_t resumed = 0, failed = 0, asked = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Story story(seed);
    story.run();
    story.check();
    if (::testing::Test::HasFailure()) return;
    resumed += story.stats().requests_resumed;
    failed += story.stats().requests_failed;
    asked += story.stats().requests_total;
  }
  EXPECT_GT(resumed, kSeeds);
  EXPECT_LT(failed * 20, asked) << "losses come so often that a few requests see two in a row";
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
