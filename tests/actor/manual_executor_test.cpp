// The deterministic scheduler that simulation rests on.
#include "runtime/actor/manual_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/base/check.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;

// Three actors pass messages around, with timers, as their scheduler's seed decides.
std::vector<std::string> conversation(uint64_t seed) {
  ManualScheduler scheduler(seed);
  std::vector<std::shared_ptr<Executor>> actors;
  for (const char* name : {"engine", "worker 0", "worker 1"})
    actors.push_back(scheduler.make_executor(name));
  int budget = 200;
  std::function<void(size_t)> talk = [&](size_t who) {
    if (--budget < 0) return;
    const size_t to = scheduler.random(actors.size());
    actors[to]->post([&talk, to] { talk(to); });
    actors[who]->post_after(milliseconds(scheduler.random(5)), [&talk, who] { talk(who); });
  };
  for (size_t i = 0; i < actors.size(); ++i) actors[i]->post([&talk, i] { talk(i); });
  scheduler.advance(std::chrono::seconds(1));
  return scheduler.log();
}

TEST(ManualScheduler, SameSeedGivesTheSameLog_R20) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto log = conversation(seed);
    EXPECT_GT(log.size(), 100u);
    EXPECT_EQ(log, conversation(seed)) << seed;
  }
}

TEST(ManualScheduler, SeedsChooseDifferentOrders) {
  std::set<std::vector<std::string>> logs;
  for (uint64_t seed = 0; seed < 20; ++seed) logs.insert(conversation(seed));
  EXPECT_GT(logs.size(), 15u);
}

TEST(ManualScheduler, EachExecutorKeepsTheOrderOfItsPosts) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    ManualScheduler scheduler(seed);
    const auto a = scheduler.make_executor("a");
    const auto b = scheduler.make_executor("b");
    std::vector<int> from_a;
    std::vector<int> from_b;
    for (int i = 0; i < 20; ++i) {
      a->post([&, i] { from_a.push_back(i); });
      b->post([&, i] { from_b.push_back(i); });
    }
    EXPECT_EQ(scheduler.run_until_idle(), 40u);
    EXPECT_TRUE(std::is_sorted(from_a.begin(), from_a.end()));
    EXPECT_TRUE(std::is_sorted(from_b.begin(), from_b.end()));
  }
}

TEST(ManualScheduler, TimersFireWhenTheClockIsMovedOverThem) {
  ManualScheduler scheduler;
  const auto actor = scheduler.make_executor("actor");
  std::vector<std::pair<int, Duration>> fired;
  const TimePoint start = scheduler.clock().now();
  const auto at = [&](int name) {
    return [&, name] { fired.emplace_back(name, actor->clock().now() - start); };
  };
  actor->post_after(milliseconds(20), at(20));
  actor->post_after(milliseconds(10), [&] {
    at(10)();
    actor->post_after(milliseconds(5), at(15));  // set while the clock moves
  });
  scheduler.run_until_idle();
  EXPECT_TRUE(fired.empty());
  scheduler.advance(milliseconds(19));
  EXPECT_EQ(fired.size(), 2u);
  scheduler.advance(milliseconds(1));
  ASSERT_EQ(fired.size(), 3u);
  for (const auto& [name, time] : fired) EXPECT_EQ(time, milliseconds(name));
}

TEST(ManualScheduler, CancelledTimersNeverRunEvenWhenDue) {
  ManualScheduler scheduler;
  const auto actor = scheduler.make_executor("actor");
  bool ran = false;
  const TimerId early = actor->post_after(milliseconds(1), [&] { ran = true; });
  actor->cancel(early);
  TimerId second = 0;
  actor->post_after(milliseconds(5), [&] { actor->cancel(second); });
  second = actor->post_after(milliseconds(5), [&] { ran = true; });  // due at the same time
  scheduler.advance(milliseconds(10));
  EXPECT_FALSE(ran);
}

TEST(ManualScheduler, NotesAndRunsAppearInTheLogWithTheirTime) {
  ManualScheduler scheduler;
  const auto actor = scheduler.make_executor("actor");
  actor->post_after(milliseconds(3), [&] { scheduler.note("hello"); });
  scheduler.advance(milliseconds(5));
  EXPECT_EQ(scheduler.log(), (std::vector<std::string>{"3000 actor #1", "3000 hello"}));
}

TEST(ManualScheduler, ClosuresThatFeedEachOtherForEverAreReported) {
  ManualScheduler scheduler;
  const auto actor = scheduler.make_executor("actor");
  std::function<void()> again = [&] { actor->post(again); };
  actor->post(again);
  EXPECT_THROW(scheduler.run_until_idle(1000), FatalError);
}

TEST(ManualScheduler, LetsGoOfClosuresThatHoldTheirExecutor) {
  std::weak_ptr<Executor> seen;
  {
    ManualScheduler scheduler;
    auto actor = scheduler.make_executor("actor");
    seen = actor;
    actor->post([actor] {});
    actor->post_after(milliseconds(1), [actor] {});
  }
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace refrain
