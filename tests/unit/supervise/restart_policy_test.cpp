// How often a lost group or coordinator is started again.
#include "runtime/supervise/restart_policy.h"

#include <gtest/gtest.h>

#include <set>

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RestartPolicy, GivesUpAfterThreeInAMinuteAndForgetsAfterwards_R8) {
  RestartPolicy policy(3, 1);
  const TimePoint start{};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(policy.next(start + seconds(i)).has_value());
  EXPECT_FALSE(policy.next(start + seconds(59)).has_value());
  EXPECT_TRUE(policy.next(start + seconds(61)).has_value());  // the first is more than 60 s ago
  EXPECT_FALSE(policy.next(start + seconds(61)).has_value());
}

TEST(RestartPolicy, PausesDoubleWithAJitterOfAtMostAHalf_R8) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RestartPolicy policy(3, seed);
    for (const int ms : {100, 200, 400}) {
      const auto pause = policy.next({});
      ASSERT_TRUE(pause.has_value());
      EXPECT_GE(*pause, milliseconds(ms));
      EXPECT_LE(*pause, milliseconds(ms + ms / 2));
    }
  }
}

TEST(RestartPolicy, TheSameSeedGivesTheSamePausesAnotherGivesOthers_R8) {
  std::set<Duration> first;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RestartPolicy one(3, seed), same(3, seed);
    const auto pause = one.next({});
    EXPECT_EQ(pause, same.next({}));
    first.insert(*pause);
  }
  EXPECT_GT(first.size(), 40u);
}

TEST(RestartPolicy, RestartsWhoseCauseWasFoundCountNoLonger_R8) {
  RestartPolicy policy(3, 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(policy.next({}).has_value());
  policy.forget(2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(policy.next({}).has_value());
  EXPECT_FALSE(policy.next({}).has_value());
  policy.forget(9);
  EXPECT_TRUE(policy.next({}).has_value());
}

TEST(RestartPolicy, WithoutRestartsTheFirstLossIsTheEnd_R8) {
  EXPECT_FALSE(RestartPolicy(0, 1).next({}).has_value());
}

}  // namespace
}  // namespace refrain
