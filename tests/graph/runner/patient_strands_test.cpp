// Work that does not come back is given up, and no other waits for it.

#include "worker/runner/patient_strands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <vector>

namespace refrain::worker {
namespace {

constexpr Duration kLong = std::chrono::hours(2);

std::shared_ptr<PatientStrands::Strand> make(PatientStrands& threads) {
  auto strand = threads.make_held();
  threads.release(strand);
  return strand;
}

TEST(PatientStrands, ATaskThatDoesNotComeBackIsGivenUpAndAnotherThreadGoesOn) {
  std::promise<void> back, done;
  std::atomic<bool> begun = false, replaced = false, left = false;
  std::atomic<int> others = 0;
  PatientStrands threads(1, kLong);
  const auto stuck = make(threads), other = make(threads);
  threads.post(
      stuck,
      [&, wait = back.get_future().share()] {
        begun = true;
        wait.wait();
        stuck->publish([&] { left = true; });
        done.set_value();
      },
      [&] { replaced = true; });
  while (!begun) std::this_thread::yield();
  const TimePoint now = steady_clock().now();
  threads.give_up_overdue(now);
  EXPECT_FALSE(replaced || stuck->given_up());
  threads.give_up_overdue(now + 2 * kLong);
  EXPECT_TRUE(replaced && stuck->given_up());
  threads.post(
      other, [&] { ++others; }, [] {});
  while (others == 0) std::this_thread::yield();
  threads.post(
      stuck, [&] { left = true; }, [&] { ++others; });
  EXPECT_EQ(others, 2) << "at once";
  back.set_value();
  done.get_future().wait();
  EXPECT_FALSE(left) << "what comes late is lost";
  EXPECT_FALSE(other->given_up());
}

// Those behind the one that does not come back have done nothing wrong.
TEST(PatientStrands, AStrandThatWaitsForAThreadIsGivenOne) {
  std::promise<void> back;
  std::atomic<bool> begun = false;
  std::atomic<int> others = 0;
  const auto wait = back.get_future().share();
  PatientStrands threads(1, kLong);
  const auto stuck = make(threads), other = make(threads);
  threads.post(
      stuck,
      [&, wait] {
        begun = true;
        wait.wait();
      },
      [] {});
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 3; ++i)
    threads.post(
        other, [&] { ++others; }, [] {});
  threads.give_up_overdue(steady_clock().now() + kLong);
  while (others < 3) std::this_thread::yield();
  EXPECT_FALSE(other->given_up());
  back.set_value();
}

TEST(PatientStrands, ATaskMayGiveItsOwnStrandUp) {
  PatientStrands threads(1, kLong);
  const auto strand = threads.make_held(), other = make(threads);
  std::atomic<int> ran = 0, replaced = 0;
  std::promise<void> done;
  for (int i = 0; i < 3; ++i)
    threads.post(
        strand,
        [&] {
          ++ran;
          strand->give_up();
        },
        [&] { ++replaced; });
  threads.release(strand);
  threads.post(
      other, [&] { done.set_value(); }, [] {});  // behind it, by the same thread
  done.get_future().wait();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(replaced, 2);
}

TEST(PatientStrands, TasksOfAStrandKeepTheirOrder) {
  PatientStrands threads(4, kLong);
  const auto strand = threads.make_held();
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 100; ++i)
    threads.post(
        strand,
        [&, i] {
          order.push_back(i);
          if (i == 99) done.set_value();
        },
        [] {});
  EXPECT_TRUE(order.empty());
  threads.release(strand);
  done.get_future().wait();
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(order.size(), 100u);
}

}  // namespace
}  // namespace refrain::worker
