// Strands, timers, signals and process watching on real time and real processes.
#include "runtime/actor/io_context.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <future>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/actor/io_threads.h"
#include "runtime/actor/thread_pool.h"
#include "runtime/base/check.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;

// Runs until the test calls stop(); a test that hangs fails after ten seconds instead.
class IoContextTest : public testing::Test {
 protected:
  void run(int threads = 1) {
    auto watchdog = strand_->post_after(std::chrono::seconds(10), [this] {
      ADD_FAILURE() << "timed out";
      io_.stop();
    });
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([this] { io_.run(); });
    io_.run();
    for (auto& thread : others) thread.join();
    strand_->cancel(watchdog);
  }

  IoContext io_;
  std::shared_ptr<Executor> strand_ = io_.make_strand();
};

using Strand = IoContextTest;
using Timers = IoContextTest;
using Signals = IoContextTest;
using ProcessExit = IoContextTest;

TEST_F(Strand, RunsClosuresInOrderAndNeverTwoAtOnce) {
  constexpr int kPosts = 5000;
  std::atomic<int> inside{0};
  std::vector<int> order;
  for (int i = 0; i < kPosts; ++i)
    strand_->post([&, i] {
      EXPECT_EQ(inside.fetch_add(1), 0);
      order.push_back(i);
      inside.fetch_sub(1);
      if (i + 1 == kPosts) io_.stop();
    });
  run(3);
  ASSERT_EQ(order.size(), size_t{kPosts});
  for (int i = 0; i < kPosts; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(Strand, ExceptionOfATaskLeavesRun) {
  strand_->post([] { throw FatalError("broken"); });
  EXPECT_THROW(io_.run(), FatalError);
}

TEST_F(Timers, FireInOrderOfTheirDelaysAndNotBefore) {
  constexpr milliseconds kLong{100}, kShort{10};
  std::vector<milliseconds> fired;
  Duration apart{};
  do {  // again when the machine stalled between the two calls: that turns their times around
    fired.clear();
    IoContext io;
    const auto strand = io.make_strand();
    const TimePoint start = strand->clock().now();
    const auto fire = [&](milliseconds delay) {
      strand->post_after(delay, [&, delay] {
        fired.push_back(delay);
        EXPECT_GE(strand->clock().now() - start, delay);
        if (fired.size() == 2) io.stop();
      });
    };
    fire(kLong);
    fire(kShort);
    apart = strand->clock().now() - start;
    io.run();
  } while (apart >= kLong - kShort);
  EXPECT_EQ(fired, (std::vector{kShort, kLong}));
}

TEST_F(Timers, CancelledTaskNeverStartsEvenWhenItHasExpired) {
  bool started = false;
  strand_->post([&] {
    const TimerId timer = strand_->post_after(milliseconds(1), [&] { started = true; });
    // Expires while the strand is busy here, and is ready to run when cancelled.
    const TimePoint until = strand_->clock().now() + milliseconds(20);
    while (strand_->clock().now() < until) {
    }
    strand_->cancel(timer);
    strand_->cancel(timer);      // twice is harmless
    strand_->cancel(123456789);  // so is one that never was
    strand_->post_after(milliseconds(20), [&] { io_.stop(); });
  });
  run(2);
  EXPECT_FALSE(started);
}

TEST_F(Signals, ArriveOnTheStrandEachTime) {
  std::vector<int> seen;
  io_.on_signals({SIGUSR1, SIGUSR2}, strand_, [&](int signal) {
    seen.push_back(signal);
    if (seen.size() == 1) {
      std::raise(SIGUSR1);
    } else if (seen.size() == 2) {
      std::raise(SIGUSR2);
    } else {
      io_.stop();
    }
  });
  strand_->post([] { std::raise(SIGUSR1); });
  run();
  EXPECT_EQ(seen, (std::vector<int>{SIGUSR1, SIGUSR1, SIGUSR2}));
}

int ends_with_a_signal_after(void (IoContext::*on_signals)(const std::vector<int>&,
                                                           std::shared_ptr<Executor>,
                                                           std::function<void(int)>)) {
  const pid_t child = ::fork();
  if (child == 0) {
    {
      IoContext io;
      (io.*on_signals)({SIGTERM}, io.make_strand(), [](int) {});
    }
    std::raise(SIGTERM);
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(SignalsAfterTheContext, KillAgainUnlessTheyWereTakenForGood) {
  const int status = ends_with_a_signal_after(&IoContext::on_signals);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_EQ(ends_with_a_signal_after(&IoContext::on_signals_for_good), 0);
}

// the death of a process is noticed within 50 ms. The least of some deaths: a machine that
// stalls for that long does not do so at each of them.
TEST_F(ProcessExit, IsNoticedWithinFiftyMilliseconds_R7) {
  pid_t child = -1;
  Duration noticed = std::chrono::hours(1);
  for (int i = 0; i < 5 && noticed >= milliseconds(50); ++i) {
    IoContext io;
    const auto strand = io.make_strand();
    child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    TimePoint killed;
    int calls = 0;
    ASSERT_TRUE(io.on_process_exit(child, strand, [&] {
      ++calls;
      noticed = strand->clock().now() - killed;
      strand->post_after(milliseconds(5), [&] { io.stop(); });
    }));
    strand->post([&] {
      killed = strand->clock().now();
      ::kill(child, SIGKILL);
    });
    const auto watchdog = strand->post_after(std::chrono::seconds(10), [&] { io.stop(); });
    io.run();
    strand->cancel(watchdog);
    EXPECT_EQ(calls, 1);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  EXPECT_LT(noticed, milliseconds(50));
  EXPECT_FALSE(io_.on_process_exit(child, strand_, [] {}));  // gone already
  EXPECT_FALSE(io_.on_process_exit(0, strand_, [] {}));
  EXPECT_FALSE(io_.on_process_exit(-1, strand_, [] {}));
}

TEST(IoContext, GoesQuietlyWithWatchesTimersAndTasksLeft) {
  bool ran = false;
  auto held = std::make_shared<int>(1);
  {
    IoContext io;
    auto strand = io.make_strand();
    io.on_signals({SIGUSR1}, strand, [&](int) { ran = true; });
    ASSERT_TRUE(io.on_process_exit(::getpid(), strand, [&] { ran = true; }));
    strand->post_after(std::chrono::hours(1), [&, held] { ran = true; });
    strand->post([&, held] { ran = true; });
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(held.use_count(), 1);  // what was posted has been let go
}

TEST(ThreadPool, FinishesWhatWasPostedInOrder) {
  std::vector<int> order;
  {
    ThreadPool pool(1);
    for (int i = 0; i < 100; ++i) pool.post([&, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  std::atomic<int> done{0};
  {
    ThreadPool pool(4);
    for (int i = 0; i < 1000; ++i) pool.post([&] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

// One thread, held until all is posted: an owner with many tasks delays another one by one task.
TEST(ThreadPool, OwnersTakeTurns_R25) {
  std::string order;
  std::promise<void> posted;
  {
    ThreadPool pool(1);
    pool.post("holder", [&, wait = posted.get_future().share()] { wait.wait(); });
    for (int i = 0; i < 4; ++i) pool.post("many", [&] { order += 'm'; });
    for (int i = 0; i < 2; ++i) pool.post("few", [&] { order += 'f'; });
    pool.post("late", [&] { order += 'l'; });
    posted.set_value();
  }
  EXPECT_EQ(order, "mflmfmm");
}

TEST(IoThreads, EachContextRunsOnItsOwnThread) {
  IoThreads threads(3, "test");
  std::vector<std::thread::id> seen(3);
  std::promise<void> all;
  std::atomic<int> left{3};
  const auto executors = threads.executors();
  for (size_t i = 0; i < 3; ++i)
    executors[i]->post([&, i] {
      seen[i] = std::this_thread::get_id();
      if (--left == 0) all.set_value();
    });
  threads.start([] { ADD_FAILURE() << "a thread failed"; });
  all.get_future().wait();
  threads.stop();
  EXPECT_EQ(std::set<std::thread::id>(seen.begin(), seen.end()).size(), 3u);
}

TEST(IoThreads, AnExceptionEndsItsThreadIsToldAndComesOutOfStop) {
  IoThreads threads(2, "test");
  threads.executors()[1]->post([] { throw FatalError("broken"); });
  std::promise<void> failed;
  threads.start([&] { failed.set_value(); });
  failed.get_future().wait();
  EXPECT_THROW(threads.stop(), FatalError);
}

}  // namespace
}  // namespace refrain
