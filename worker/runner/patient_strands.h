#pragma once
// Threads for work that may take longer than anybody can wait, and cannot be stopped. A strand's
// tasks run in their order, those of several strands side by side. A strand whose task is not done
// in time is given up: what should have come of its tasks is replaced, what still comes of them is
// lost, and another thread takes the place of the one that has not come back, so that no other
// strand waits for it. Any thread.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"

namespace refrain::worker {

class PatientStrands {
 public:
  class Strand {
   public:
    // Runs `write` unless the strand has been given up. Whatever a task leaves behind outside of
    // its strand it leaves so.
    void publish(const std::function<void()>& write);
    bool given_up() const;
    // By a task of its own that has seen enough: those behind it are replaced.
    void give_up();

   private:
    friend class PatientStrands;
    struct Task {
      std::function<void()> run;
      std::function<void()> instead;
      TimePoint until;
    };
    enum class State { kIdle, kHeld, kWaiting, kRuns };
    mutable std::mutex mutex_;
    bool given_up_ = false;  // under that mutex; all else under that of the threads
    State state_ = State::kIdle;
    std::deque<Task> tasks_;
    bool watched_ = false;
    bool late_ = false;  // its first task has had its patience once and did not begin
  };

  // A task has `patience` from the moment it is posted, and once more where it has not begun then.
  PatientStrands(int num_threads, Duration patience);
  // Gives up what is not done, and waits for no thread that is in a task given up.
  ~PatientStrands();
  PatientStrands(const PatientStrands&) = delete;
  PatientStrands& operator=(const PatientStrands&) = delete;

  // One whose tasks wait until it is released.
  std::shared_ptr<Strand> make_held();
  void release(const std::shared_ptr<Strand>& strand);
  // `instead` runs in place of what `run` has not published, when the strand has been given up: at
  // once where it has been before.
  struct Work {
    std::shared_ptr<Strand> strand;
    std::function<void()> run, instead;
  };
  // Threads are woken once for all of it: waking and meeting them for each one of many would take
  // milliseconds.
  void post(std::vector<Work> all);
  // Gives up what is overdue then. A thread does so all the time; for tests.
  void give_up_overdue(TimePoint now);

 private:
  struct Shared {  // with the threads, which may outlive this
    std::mutex mutex;
    std::condition_variable changed, watch_changed;
    std::deque<std::shared_ptr<Strand>> waiting;
    std::vector<std::shared_ptr<Strand>> watched;
    int threads = 0;  // that are in no task given up
    bool stop = false;
  };
  static void run(const std::shared_ptr<Shared>& shared, int most);
  void watch();
  void give_up(Strand& strand);
  void start_thread();
  void enqueue(const std::shared_ptr<Strand>& strand);  // who waits for it is not woken

  const int num_threads_;
  const Duration patience_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread watcher_;
};

}  // namespace refrain::worker
