#pragma once
// Endpoints within one process, for tests and for mock workers: a hub joins one server with its
// clients. Frames are copied, arrive in order per pair, on the receiver's executor; with
// ManualExecutors the whole exchange is deterministic. Any thread may make endpoints.

#include <memory>

#include "ipc/transport/endpoint.h"
#include "runtime/actor/executor.h"

namespace refrain::ipc {

class InprocHub : public std::enable_shared_from_this<InprocHub> {
 public:
  static std::shared_ptr<InprocHub> create();
  ~InprocHub();

  // One server at a time (kInvalidArgument); a new one may come when the old one is closed. Frames
  // for a server that is not there yet wait, up to the high-water mark.
  Result<std::unique_ptr<Endpoint>> make_server(std::shared_ptr<Executor> executor,
                                                int high_water_mark = 1024);
  // Known to the server by `identity` as it is, from the first frame on. Identities are unique
  // among the living.
  Result<std::unique_ptr<Endpoint>> make_client(std::shared_ptr<Executor> executor, PeerId identity,
                                                int high_water_mark = 1024);

 private:
  struct Port;
  friend class InprocEndpoint;
  InprocHub();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refrain::ipc
