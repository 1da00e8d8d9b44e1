#pragma once
// Threads for I/O, each with an IoContext of its own that no other thread runs: what is posted to
// one of them runs there one closure at a time. Owned by the program's main thread; a context lives
// until its IoThreads goes, its thread until stop().

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/actor/io_context.h"

namespace refrain {

class IoThreads {
 public:
  // The threads are called "name-0", "name-1", …; none runs before start().
  IoThreads(int count, const std::string& name);
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  size_t size() const { return threads_.size(); }
  IoContext& context(size_t index) { return threads_.at(index)->io; }
  std::vector<std::shared_ptr<Executor>> executors();  // one on each thread
  // `on_failure` is called, on the thread at fault, when an exception ends it.
  void start(std::function<void()> on_failure);
  // Ends all and waits for them.
  void join();
  // The same; the exception that ended one comes out here.
  void stop();

 private:
  struct One {
    std::string name;
    IoContext io;
    std::thread thread;
  };
  void run(One& one);

  std::vector<std::unique_ptr<One>> threads_;
  std::function<void()> on_failure_;
  std::mutex mutex_;
  std::exception_ptr failure_;  // the first
};

// Shown by ps and top; the system cuts it after 15 bytes.
void name_this_thread(const std::string& name);

}  // namespace refrain
