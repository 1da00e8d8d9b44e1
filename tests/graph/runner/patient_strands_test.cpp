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

void post(PatientStrands& threads, const std::shared_ptr<PatientStrands::Strand>& strand,
          std::function<void()> run, std::function<void()> instead) {
  threads.post({{strand, std::move(run), std::move(instead)}});
}

TEST(PatientStrands, ATaskThatDoesNotComeBackIsGivenUpAndAnotherThreadGoesOn) {
  std::promise<void> back, done;
  std::atomic<bool> begun = false, replaced = false, left = false;
  std::atomic<int> others = 0;
  PatientStrands threads(1, kLong);
  const auto stuck = make(threads), other = make(threads);
  post(
      threads, stuck,
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
  post(
      threads, other, [&] { ++others; }, [] {});
  while (others == 0) std::this_thread::yield();
  post(
      threads, stuck, [&] { left = true; }, [&] { ++others; });
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
  post(
      threads, stuck,
      [&, wait] {
        begun = true;
        wait.wait();
      },
      [] {});
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 3; ++i)
    post(
        threads, other, [&] { ++others; }, [] {});
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
    post(
        threads, strand,
        [&] {
          ++ran;
          strand->give_up();
        },
        [&] { ++replaced; });
  threads.release(strand);
  post(
      threads, other, [&] { done.set_value(); }, [] {});  // behind it, by the same thread
  done.get_future().wait();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(replaced, 2);
}

TEST(PatientStrands, WorkOfManyStrandsIsPostedAtOnceAndThatOfOneGivenUpIsReplaced) {
  constexpr int kStrands = 50;
  PatientStrands threads(4, kLong);
  std::vector<PatientStrands::Work> all;
  std::atomic<int> ran = 0, replaced = 0;
  for (int i = 0; i < kStrands; ++i) {
    const auto strand = make(threads);
    if (i == 7) strand->give_up();
    for (int task = 0; task < 2; ++task)
      all.push_back({strand, [&] { ++ran; }, [&] { ++replaced; }});
  }
  threads.post(std::move(all));
  EXPECT_EQ(replaced, 2) << "at once";
  while (ran < 2 * (kStrands - 1)) std::this_thread::yield();
  threads.post({});
}

TEST(PatientStrands, TasksOfAStrandKeepTheirOrder) {
  PatientStrands threads(4, kLong);
  const auto strand = threads.make_held();
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 100; ++i)
    post(
        threads, strand,
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
