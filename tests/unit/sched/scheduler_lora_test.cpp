// LoRA adapters in the scheduler: whose blocks are whose, who gets a place, who waits.

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::small_options;
using testing::solo_run;

SchedulerOptions lora_options(int32_t places) {
  SchedulerOptions options = small_options();
  options.max_loras = places;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  return options;
}

SequenceParams adapter_params(AdapterId adapter, int64_t max_tokens = 6) {
  SequenceParams params;
  params.max_tokens = max_tokens;
  params.adapter = adapter;
  return params;
}

SequenceParams seeded_params(RequestId id, AdapterId adapter, int64_t max_tokens) {
  SequenceParams params = adapter_params(adapter, max_tokens);
  params.setup.seed = id;
  return params;
}

std::vector<TokenId> expected(AdapterId adapter, size_t max_tokens = 6, size_t prompt = 13) {
  return solo_run(prompt_of(prompt), max_tokens, 64, 1000, 0, {}, false, adapter);
}

TEST(SchedulerLora, AdaptersTakeTurnsAndEveryRequestGetsItsOwn) {
  for (const int32_t places : {1, 2, 3}) {
    for (const int depth : {1, 2}) {
      Harness harness(lora_options(places), depth);
      for (AdapterId adapter = 1; adapter <= 5; ++adapter)
        harness.scheduler.adapter_loaded(adapter);
      std::map<RequestId, AdapterId> adapters;
      for (RequestId id = 1; id <= 40; ++id) {
        adapters[id] = static_cast<AdapterId>(id * 7 % 6);
        ASSERT_TRUE(harness.add(id, prompt_of(13), adapter_params(adapters[id])));
      }
      ASSERT_TRUE(harness.run());
      for (const auto& [id, adapter] : adapters)
        EXPECT_EQ(harness.outcomes[id].output, expected(adapter)) << "adapter " << adapter;
      for (AdapterId adapter = 1; adapter <= 5; ++adapter)
        EXPECT_FALSE(harness.scheduler.adapter_in_use(adapter));
      EXPECT_TRUE(harness.all_blocks_free());
    }
  }
}

// The same tokens, and a salt that spells another adapter's number.
TEST(SchedulerLora, ACachedBlockIsOfItsAdapterAlone) {
  Harness harness(lora_options(2), 1);
  harness.scheduler.adapter_loaded(1);
  harness.scheduler.adapter_loaded(2);
  RequestId id = 0;
  const auto run = [&](AdapterId adapter, const std::string& salt = "") {
    SequenceParams params = adapter_params(adapter);
    params.cache_salt = salt;
    EXPECT_TRUE(harness.add(++id, prompt_of(13), params));
    EXPECT_TRUE(harness.run());
    EXPECT_EQ(harness.outcomes[id].output, expected(adapter));
    return harness.outcomes[id].cached_tokens;
  };
  EXPECT_EQ(run(0), 0);
  EXPECT_EQ(run(1), 0) << "the base's blocks";
  EXPECT_EQ(run(2), 0);
  EXPECT_EQ(run(1), 12);
  EXPECT_EQ(run(0), 12);
  EXPECT_EQ(run(0, std::string("\1\0\0\0", 4)), 0) << "a salt passes for an adapter";
}

TEST(SchedulerLora, TheAdapterLongestOutOfUseGivesItsPlace) {
  Harness harness(lora_options(2), 1);
  for (AdapterId adapter = 1; adapter <= 3; ++adapter) harness.scheduler.adapter_loaded(adapter);
  std::vector<AdapterId> placed;
  RequestId id = 0;
  for (const AdapterId adapter : {1, 2, 1, 3, 1, 2, 2}) {
    ASSERT_TRUE(harness.add(++id, prompt_of(5), adapter_params(adapter, 2)));
    harness.steps.clear();
    ASSERT_TRUE(harness.run());
    AdapterId moved = 0;
    for (const ipc::Step& step : harness.steps)
      for (const ipc::AdapterPlacement& placement : step.placements) moved = placement.adapter;
    placed.push_back(moved);
  }
  EXPECT_EQ(placed, (std::vector<AdapterId>{1, 2, 0, 3, 0, 2, 0}));
}

TEST(SchedulerLora, RequestsWithoutAnAdapterPassWhoWaitsForAPlaceThoseOfTheTurnThatEndsDoNot) {
  Harness harness(lora_options(1), 1);
  harness.scheduler.adapter_loaded(1);
  harness.scheduler.adapter_loaded(2);
  ASSERT_TRUE(harness.add(1, prompt_of(4), adapter_params(1, 20)));
  ASSERT_TRUE(harness.send());
  ASSERT_TRUE(harness.add(2, prompt_of(4), adapter_params(2)));
  ASSERT_TRUE(harness.add(3, prompt_of(4), adapter_params(1)));  // has its place, but came later
  ASSERT_TRUE(harness.add(4, prompt_of(4), adapter_params(0)));
  ASSERT_TRUE(harness.receive());
  ASSERT_TRUE(harness.send());
  const ipc::Step& second = harness.steps.back();
  EXPECT_EQ(second.setups.size(), 1u) << "the base model's request";
  EXPECT_EQ(second.setups[0].adapter, -1);
  EXPECT_TRUE(second.has_lora);
  ASSERT_TRUE(harness.run());
  for (RequestId id = 1; id <= 4; ++id) EXPECT_EQ(harness.outcomes[id].finishes, 1) << id;
  EXPECT_EQ(harness.outcomes[2].output, expected(2, 6, 4));
  EXPECT_EQ(harness.outcomes[3].output, expected(1, 6, 4));
}

// Requests that begin to run in the next step: their seeds.
std::set<RequestId> begin_next(Harness& harness) {
  while (harness.receive()) {
  }
  std::set<RequestId> begun;
  if (!harness.send()) return begun;
  for (const ipc::SlotSetup& setup : harness.steps.back().setups) begun.insert(setup.seed);
  return begun;
}

TEST(SchedulerLora, ATurnHasAllWhoWereThereWhenItBegan) {
  Harness harness(lora_options(1), 1);
  for (AdapterId adapter = 1; adapter <= 2; ++adapter) harness.scheduler.adapter_loaded(adapter);
  for (RequestId id = 1; id <= 6; ++id)
    ASSERT_TRUE(harness.add(id, prompt_of(4), seeded_params(id, id % 2 == 1 ? 1 : 2, 3)));
  EXPECT_EQ(begin_next(harness), (std::set<RequestId>{1, 3, 5})) << "2 waits";
  ASSERT_TRUE(harness.add(7, prompt_of(4), seeded_params(7, 1, 3)));
  EXPECT_EQ(begin_next(harness), std::set<RequestId>{}) << "7 came later";
  EXPECT_EQ(begin_next(harness), std::set<RequestId>{});
  EXPECT_EQ(begin_next(harness), (std::set<RequestId>{2, 4, 6}));
  ASSERT_TRUE(harness.run());
  for (RequestId id = 1; id <= 7; ++id) EXPECT_EQ(harness.outcomes[id].finishes, 1) << id;
}

TEST(SchedulerLora, ForEachAdapterThatWaitsOneTurnEndsTheOldestFirst) {
  Harness harness(lora_options(3), 1);
  for (AdapterId adapter = 1; adapter <= 5; ++adapter) harness.scheduler.adapter_loaded(adapter);
  RequestId id = 0;
  const auto add = [&](AdapterId adapter) {
    ++id;
    ASSERT_TRUE(harness.add(id, prompt_of(4), seeded_params(id, adapter, 30)));
  };
  for (AdapterId adapter = 1; adapter <= 3; ++adapter) {
    add(adapter);
    EXPECT_EQ(begin_next(harness), std::set<RequestId>{id});
  }
  for (const AdapterId adapter : {4, 1, 2, 3, 4}) add(adapter);  // requests 4 to 8
  EXPECT_EQ(begin_next(harness), (std::set<RequestId>{6, 7})) << "the turn of 1 ends for 4";
  for (const AdapterId adapter : {5, 2, 3}) add(adapter);  // 9 to 11
  EXPECT_EQ(begin_next(harness), std::set<RequestId>{11}) << "that of 2 ends for 5";
  ASSERT_TRUE(harness.run());
  for (RequestId at = 1; at <= id; ++at) EXPECT_EQ(harness.outcomes[at].finishes, 1) << at;
}

// Requests of one adapter that never stop coming.
TEST(SchedulerLora, EverybodysTurnComes) {
  Harness harness(lora_options(1), 2);
  harness.scheduler.adapter_loaded(1);
  harness.scheduler.adapter_loaded(2);
  constexpr RequestId kOther = 3;
  for (RequestId id = 1; id <= 60 && harness.outcomes[kOther].finishes == 0; ++id) {
    ASSERT_TRUE(harness.add(id, prompt_of(4), adapter_params(id == kOther ? 2 : 1)));
    harness.send();
    harness.receive();
  }
  EXPECT_EQ(harness.outcomes[kOther].finishes, 1);
  EXPECT_EQ(harness.outcomes[kOther].output, expected(2, 6, 4));
  ASSERT_TRUE(harness.run());
}

TEST(SchedulerLora, ARequestWaitsUntilAllRanksHaveItsAdapterAndAnAdapterStaysWhileARowIsInFlight) {
  Harness harness(lora_options(1), 2);
  ASSERT_TRUE(harness.add(1, prompt_of(4), adapter_params(1)));
  EXPECT_FALSE(harness.send()) << "nobody has it";
  harness.scheduler.adapter_loaded(1);
  ASSERT_TRUE(harness.send());
  ASSERT_TRUE(harness.send());
  EXPECT_TRUE(harness.scheduler.cancel(1));
  EXPECT_TRUE(harness.scheduler.adapter_in_use(1)) << "two steps of it are in flight";
  ASSERT_TRUE(harness.receive());
  EXPECT_TRUE(harness.scheduler.adapter_in_use(1));
  ASSERT_TRUE(harness.receive());
  EXPECT_FALSE(harness.scheduler.adapter_in_use(1));
  harness.scheduler.adapter_unloaded(1);
  ASSERT_TRUE(harness.add(2, prompt_of(4), adapter_params(1)));
  EXPECT_FALSE(harness.send()) << "it is gone";
}

// Too few blocks for all: who makes room comes back with its adapter, wherever that is by then.
TEST(SchedulerLora, APreemptedRequestComesBackWithItsAdapter) {
  SchedulerOptions options = lora_options(2);
  options.groups = testing::full_attention(20);
  Harness harness(options, 2);
  for (AdapterId adapter = 1; adapter <= 3; ++adapter) harness.scheduler.adapter_loaded(adapter);
  for (RequestId id = 1; id <= 12; ++id)
    ASSERT_TRUE(harness.add(id, prompt_of(13), adapter_params(static_cast<AdapterId>(id % 4), 30)));
  ASSERT_TRUE(harness.run());
  EXPECT_GT(harness.scheduler.stats().preemptions, 0u);
  for (RequestId id = 1; id <= 12; ++id)
    EXPECT_EQ(harness.outcomes[id].output, expected(static_cast<AdapterId>(id % 4), 30)) << id;
}

}  // namespace
}  // namespace refrain
