#pragma once
// The coordinator's end: brings the front's requests to the engine and the engine's tokens to the
// front, before they become text. When a front is gone its requests end. Lives on the engine's
// executor.

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/actor/run_later.h"
#include "runtime/engine/rank_processes.h"
#include "runtime/front/link.h"

namespace refrain::front {

class FrontDoor : public std::enable_shared_from_this<FrontDoor> {
 public:
  struct Parts {
    std::shared_ptr<Executor> executor;       // the engine's
    std::unique_ptr<ipc::Endpoint> endpoint;  // a client
    ProcessWatch watch;
    ProcessIdentity process;
    std::string build_id;
    uint64_t incarnation = 1;  // of this coordinator; no other had it
  };
  explicit FrontDoor(Parts parts);

  // The engine's output side. Once, before start().
  MakeOutputs outputs();
  // Says hello until a front answers. `engine` outlives the last task on the executor.
  void start(Engine& engine);
  // A group of the engine is in another state.
  void tell_state();

  static constexpr Duration kHelloPause = std::chrono::milliseconds(50);
  static constexpr Duration kStatePause = std::chrono::milliseconds(100);

 private:
  class Outputs;

  void on_frame(std::span<const std::byte> frame);
  void hello();
  void look();
  void begin(const Welcome& welcome);
  void lose_session(const std::string& why);
  void end_requests();
  bool send(const Message& message);

  void on(const Submit& submit);
  void on(const Cancel& cancel);
  void on(const Taken& taken);
  void on(const AskStats& ask);
  void on(const LoadAdapter& load);
  void on(const UnloadAdapter& unload);
  void on(const OrderGroup& order);
  template <class Unexpected>
  void on(const Unexpected& /*message*/);
  std::function<void(const Status&)> answer_to(uint64_t ticket);

  // Of its output side.
  bool has(RequestId front_id, RequestId id) const;
  void add(RequestId front_id, TokenArrival arrival);
  void hand_over();
  void end(RequestId front_id, RequestId id, FinishReason reason, std::optional<Error> error);
  bool full();

  std::shared_ptr<Executor> executor_;
  Link link_;
  ProcessWatch watch_;
  Hello hello_;
  RunLater run_later_;
  Engine* engine_ = nullptr;
  ProcessIdentity front_;
  bool greeting_ = false;  // a timer says hello
  std::function<void(RequestId)> stopped_;
  std::function<void()> caught_up_;
  std::unordered_map<RequestId, RequestId> ids_;  // the engine's, by the front's
  Tokens batch_;
  size_t batch_bytes_ = 0;
  int untaken_ = 0;  // batches
  bool engine_waits_ = false;
};

// With a socket to the front's `address`; on `executor`, the engine's, of `io`.
Result<std::shared_ptr<FrontDoor>> open_front_door(IoContext& io,
                                                   const std::shared_ptr<Executor>& executor,
                                                   const std::string& address);

}  // namespace refrain::front
