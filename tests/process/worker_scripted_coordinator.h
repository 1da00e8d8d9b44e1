#pragma once
// A coordinator under a test's control: a real ZeroMQ server on a thread of its own, and worker
// processes started from the build folder.

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/transport/endpoint.h"
#include "runtime/actor/io_context.h"
#include "tests/temporary_directory.h"

namespace refrain {

class WorkerProcess {
 public:
  explicit WorkerProcess(const std::vector<std::string>& arguments);
  ~WorkerProcess();  // kills it when it still runs
  pid_t pid() const { return pid_; }
  void send_signal(int signal) const;
  // Exit code, or 1000 + the signal that killed it; nothing within 30 s: -1.
  int wait();

 private:
  pid_t pid_;
  bool waited_ = false;
};

class ScriptedCoordinator {
 public:
  ScriptedCoordinator();
  ~ScriptedCoordinator();

  const std::string& address() const { return address_; }
  // Waits for the Hello of this process, which is the rank from then on: what another one that had
  // the rank before still says is not taken for its.
  std::optional<ipc::Hello> meet(int rank, pid_t pid);
  // The next message of this kind from a rank, others dropped; Failed and 30 s of silence are
  // errors: an empty optional, the reason in error().
  template <class T>
  std::optional<T> expect(int rank) {
    while (true) {
      auto message = next(rank);
      if (!message) return std::nullopt;
      if (auto* wanted = std::get_if<T>(&*message)) return std::move(*wanted);
      if (auto* failed = std::get_if<ipc::Failed>(&*message)) {
        error_ = failed->message;
        return std::nullopt;
      }
    }
  }
  void welcome(int rank, const ipc::WorkerConfig& config, Epoch epoch);
  void send(int rank, const ipc::Message& message);
  void refuse(int rank, const std::string& reason);
  const std::string& error() const { return error_; }
  const std::string& group_token() const { return group_token_; }

 private:
  struct Rank {
    ipc::PeerId peer;
    Epoch epoch = 0;
    uint64_t sequence = 0;
  };
  void on_frame(const ipc::PeerId& from, std::span<const std::byte> frame);
  std::optional<ipc::Message> next(int rank);
  void transmit(int rank, const ipc::Message& message, ipc::FrameInfo info);

  tests::TemporaryDirectory directory_;
  std::string address_;
  std::string group_token_;
  std::string error_;
  IoContext io_;
  std::shared_ptr<Executor> strand_;
  std::unique_ptr<ipc::Endpoint> server_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<int, Rank> ranks_;
  std::map<int64_t, ipc::PeerId> processes_;  // that said hello, by pid
  std::map<ipc::PeerId, std::deque<ipc::Message>> messages_;
  std::thread thread_;
};

}  // namespace refrain
