#pragma once
// Boost.Asio behind a narrow door, so that its headers stay in runtime/actor, ipc and the server.
// One IoContext per process part; run() is called by the threads that shall serve it.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/base/process_identity.h"

namespace boost::asio {
class io_context;
}

namespace refrain {

class IoContext {
 public:
  IoContext();
  ~IoContext();
  IoContext(const IoContext&) = delete;
  IoContext& operator=(const IoContext&) = delete;

  // A new strand: closures posted to it run one at a time on some thread inside run(). Let go of
  // strands before the IoContext goes.
  std::shared_ptr<Executor> make_strand();
  void run();   // until stop(); exceptions of tasks propagate
  void stop();  // any thread
  // Calls `handler(signal)` on the strand for each of the signals, until the context stops.
  void on_signals(const std::vector<int>& signals, std::shared_ptr<Executor> strand,
                  std::function<void(int)> handler);
  // The same to the end of the process: when the context is gone, the signals do nothing, where
  // on_signals() gives them their default action back. For programs, which are not to be killed
  // while they clear up.
  void on_signals_for_good(const std::vector<int>& signals, std::shared_ptr<Executor> strand,
                           std::function<void(int)> handler);
  // Calls `handler()` once on the strand when the process ends (a pidfd; R-7: within 50 ms). False
  // when the process cannot be watched (another host, already gone).
  bool on_process_exit(int64_t pid, std::shared_ptr<Executor> strand,
                       std::function<void()> handler);
  // The same of the process that is meant and no other that has its pid by now: one that is
  // gone already calls the handler at once.
  bool on_process_exit(const ProcessIdentity& process, const std::shared_ptr<Executor>& strand,
                       std::function<void()> handler);
  // Calls `handler(line)` on the strand for each line read from the pipe, until its writers are
  // gone; takes the descriptor. A line longer than 1 MiB ends it.
  void on_lines(int fd, std::shared_ptr<Executor> strand,
                std::function<void(std::string line)> handler);
  boost::asio::io_context& native();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refrain
