#include "runtime/supervise/ending_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

namespace refrain {
namespace {

using std::chrono::hours;

constexpr auto kLong = std::chrono::seconds(20);

// no thread of the process needs to run for it.
TEST(EndingWatch, ForcesTheEndWhenTheTimeIsOver_R25) {
  std::promise<void> forced;
  EndingWatch watch(0, Duration{}, [&] { forced.set_value(); });
  watch.end_within(hours(1));
  watch.end_within(Duration{});  // the earliest counts
  watch.end_within(hours(2));
  EXPECT_EQ(forced.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(EndingWatch, ForcesTheEndWhenTheParentIsGone_R25) {
  std::promise<void> forced;
  EndingWatch watch(::getpid(), Duration{}, [&] { forced.set_value(); });  // not our parent
  EXPECT_EQ(forced.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(EndingWatch, ForcesNothingWhenTheProcessEndsInTime_R25) {
  bool forced = false;
  {
    EndingWatch watch(::getppid(), Duration{}, [&] { forced = true; });
    watch.end_within(hours(1));
  }
  EXPECT_FALSE(forced);
}

}  // namespace
}  // namespace refrain
