#pragma once
// The transport seam: frames between one server (the coordinator) and its peers (the workers).
// Implementations: ZeroMQ ROUTER/DEALER (zmq_endpoint.h) and in-process (inproc_endpoint.h).
// An endpoint lives on one executor (runtime/actor): all calls and callbacks happen there.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace refrain {
class IoContext;  // runtime/actor/io_context.h
}

namespace refrain::ipc {

using PeerId = std::string;  // a worker's identity: "rank-0", unique in a group

class Endpoint {
 public:
  using FrameHandler = std::function<void(const PeerId& from, std::span<const std::byte> frame)>;

  virtual ~Endpoint() = default;
  // Begins to receive. The handler's span is valid during the call only.
  virtual void start(FrameHandler on_frame) = 0;
  // Never blocks: kOverloaded when the peer's queue is full, kUnavailable when it is unknown. A
  // client endpoint ignores `to`.
  virtual Status send(const PeerId& to, std::span<const std::byte> frame) = 0;
  // Stops receiving and gives the address back (an ipc:// file is removed).
  virtual void close() = 0;
};

struct EndpointOptions {
  std::string address;  // ipc:///path/socket or tcp://host:port
  PeerId identity;      // of a client
  int high_water_mark = 1024;
  int64_t max_message_bytes = 0;  // 0: kMaxFrameBytes
  bool allow_wildcard = false;    // tcp://*: refused unless set
};

// ROUTER, bound. For ipc:// the directory is made with mode 0700 and peers of another user are
// refused. Errors name the address (in use, not writable, …).
Result<std::unique_ptr<Endpoint>> make_zmq_server(IoContext& io, const EndpointOptions& options);
// DEALER, connected; connecting goes on in the background until the server is there.
Result<std::unique_ptr<Endpoint>> make_zmq_client(IoContext& io, const EndpointOptions& options);

}  // namespace refrain::ipc
