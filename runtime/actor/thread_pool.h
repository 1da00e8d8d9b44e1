#pragma once
// Fixed threads for blocking or long work (tokenising, templates, file reading). Tasks of one owner
// run in order of arrival; owners take turns, so that one with many tasks delays another by no more
// than one task of each. Any thread posts; the destructor finishes what was posted.

#include <functional>
#include <memory>
#include <string>

namespace refrain {

class ThreadPool {
 public:
  // The threads are called "name-0", "name-1", ….
  explicit ThreadPool(int threads, const std::string& name = "pool");
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void post(std::function<void()> task) { post({}, std::move(task)); }
  void post(const std::string& owner, std::function<void()> task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refrain
