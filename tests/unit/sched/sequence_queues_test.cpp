#include "runtime/sched/sequence_queues.h"

#include <gtest/gtest.h>

#include "tests/unit/sched/parts.h"

namespace refrain {
namespace {

using testing::Parts;
using Ids = std::vector<RequestId>;

TEST(SequenceQueues, WaitByPriorityAndThenInOrderOfArrival) {
  Parts parts;
  parts.add(1, 4);
  parts.add(2, 4, -1);
  parts.add(3, 4);
  parts.add(4, 4, -1);
  EXPECT_EQ(parts.waiting(), (Ids{2, 4, 1, 3}));
  EXPECT_EQ(*parts.queues.run(parts.queues.waiting().begin()), parts.queues.find(4));
  EXPECT_EQ(parts.waiting(), (Ids{4, 1, 3}));
  EXPECT_EQ(parts.running(), (Ids{2}));
  EXPECT_EQ(parts.queues.num_unfinished(), 4u);
}

TEST(SequenceQueues, APreemptedOneIsFirstOfItsPriorityAndKeepsItsBlocksWhileARowIsInFlight) {
  Parts parts;
  const int64_t all_free = parts.num_free();
  parts.add_running(1, 8);
  Sequence& victim = parts.add_running(2, 8);
  parts.add(3, 4);
  victim.in_flight = 1;
  parts.queues.preempt_last();
  EXPECT_EQ(parts.waiting(), (Ids{2, 3}));
  EXPECT_EQ(parts.queues.num_holding(), 1);
  EXPECT_EQ(parts.num_free(), all_free - 4);
  victim.in_flight = 0;
  parts.queues.settle(victim);
  EXPECT_EQ(parts.queues.num_holding(), 0);
  EXPECT_EQ(parts.num_free(), all_free - 2);
  EXPECT_TRUE(victim.holds_nothing());
  EXPECT_EQ(parts.queues.find(2), &victim);
}

TEST(SequenceQueues, OneThatHasEndedIsGoneWithItsLastRow) {
  Parts parts;
  const int64_t all_free = parts.num_free();
  Sequence& ended = parts.add_running(1, 8);
  ended.in_flight = 1;
  parts.queues.finish(ended);
  EXPECT_EQ(parts.queues.find(1), nullptr);
  EXPECT_EQ(parts.queues.requests_in_flight(), 1u);
  EXPECT_EQ(parts.queues.num_unfinished(), 0u);
  EXPECT_LT(parts.num_free(), all_free);
  ended.in_flight = 0;
  parts.queues.settle(ended);
  EXPECT_EQ(parts.queues.requests_in_flight(), 0u);
  EXPECT_EQ(parts.num_free(), all_free);
}

TEST(SequenceQueues, OneThatIsTakenOutHoldsNothingAndCanComeAgain) {
  Parts parts;
  const int64_t all_free = parts.num_free();
  Sequence& leaves = parts.add_running(1, 8);
  leaves.split_tokens = 6;  // a row in parts does not outlive what it was computed in
  std::unique_ptr<Sequence> taken = parts.queues.take_out(leaves);
  EXPECT_EQ(parts.num_free(), all_free);
  EXPECT_EQ(taken->state, SequenceState::kWaiting);
  EXPECT_EQ(taken->split_tokens, 0);
  parts.queues.add(std::move(taken));
  EXPECT_EQ(parts.waiting(), (Ids{1}));
}

TEST(SequenceQueues, AllThatHaveNotEndedComeBackOldestFirst) {
  Parts parts;
  const int64_t all_free = parts.num_free();
  parts.add_running(1, 8);
  Sequence& ended = parts.add_running(2, 8);
  parts.add(3, 4);
  ended.in_flight = 1;
  parts.queues.finish(ended);
  const auto left = parts.queues.release_all();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0]->id, 1u);
  EXPECT_EQ(left[1]->id, 3u);
  EXPECT_EQ(parts.num_free(), all_free);
  EXPECT_EQ(parts.queues.num_holding(), 0);
}

TEST(SequenceResources, ASlotIsTakenWithTheBlocksOrNotAtAll) {
  SchedulerOptions options = testing::small_options();
  options.groups = testing::full_attention(4);  // three to give, of four tokens
  options.max_num_seqs = 1;
  Parts parts(options);
  Sequence& large = parts.add(1, 16);
  EXPECT_FALSE(parts.resources.take(large, 0, 16, 16, false));
  EXPECT_TRUE(large.holds_nothing());
  EXPECT_TRUE(parts.resources.has_slot());
  Sequence& small = parts.add(2, 8);
  EXPECT_TRUE(parts.resources.take(small, 0, 8, 8, false));
  EXPECT_EQ(small.slot, 0);
  EXPECT_FALSE(parts.resources.has_slot());
  parts.resources.release(small);
  EXPECT_TRUE(parts.resources.has_slot());
  EXPECT_EQ(parts.num_free(), 3);
}

TEST(Preemption, TheLastOneGivesItsBlocksAtOnceOrWithItsLastRow) {
  SchedulerOptions options = testing::small_options();
  options.groups = testing::full_attention(5);
  options.watermark = 0;
  Parts parts(options);
  Sequence& first = parts.add_running(1, 8);
  Sequence& last = parts.add_running(2, 8);
  parts.begin();
  EXPECT_TRUE(parts.preemption.ensure(first, 8));
  EXPECT_FALSE(parts.preemption.short_of_blocks());
  EXPECT_TRUE(parts.preemption.ensure(first, 12));
  EXPECT_TRUE(parts.preemption.short_of_blocks());
  EXPECT_EQ(parts.preemption.count(), 1u);
  EXPECT_EQ(parts.running(), (Ids{1}));
  EXPECT_TRUE(last.holds_nothing());

  Parts busy(options);
  Sequence& waits = busy.add_running(1, 8);
  busy.add_running(2, 8).in_flight = 1;
  busy.begin();
  EXPECT_FALSE(busy.preemption.ensure(waits, 12));  // until the row is answered
  EXPECT_EQ(busy.waiting(), (Ids{2}));
  EXPECT_EQ(busy.preemption.count(), 1u);
}

TEST(Preemption, OneThatIsAloneWaitsForItsOwnSteps) {
  SchedulerOptions options = testing::small_options();
  options.groups = testing::full_attention(3);
  Parts parts(options);
  Sequence& alone = parts.add_running(1, 8);
  parts.begin();
  EXPECT_FALSE(parts.preemption.ensure(alone, 12));
  EXPECT_EQ(parts.running(), (Ids{1}));
  EXPECT_EQ(parts.preemption.count(), 0u);
}

}  // namespace
}  // namespace refrain
