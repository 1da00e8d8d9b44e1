#pragma once
// The transport seam: frames between one server (the coordinator) and its peers (the workers).
// Implementations: ZeroMQ ROUTER/DEALER (zmq_endpoint.h) and in-process (inproc_endpoint.h).
// An endpoint lives on one executor (runtime/actor): all calls and callbacks happen there.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace refrain {
class Executor;   // runtime/actor/executor.h
class IoContext;  // runtime/actor/io_context.h
}  // namespace refrain

namespace refrain::ipc {

// How a server knows a client. A ZeroMQ client adds its process and a random number to the identity
// it is given ("rank-0-4711-9f3c2a1b"), so that two claimants of one rank are two peers and the
// server can refuse one by reason: answer to the `from` of a frame, learn the rank from Hello.
using PeerId = std::string;

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
  // Where it is bound or connected, with the port that `tcp://host:*` got; empty in-process.
  virtual std::string address() const { return {}; }
  // Messages thrown away: not of one frame, without a usable identity.
  virtual uint64_t discarded() const { return 0; }
  // Peers that a CURVE handshake kept out: a key that is not allowed, or none. None of their frames
  // is seen.
  virtual uint64_t refused() const { return 0; }
};

// Encryption and authentication by key pairs (files as in ipc/transport/curve.h). Both files or
// none.
struct CurveOptions {
  std::string key_file;       // our own pair
  std::string allow_file;     // public keys: of a server's clients, or of a client's one server
  bool insecure_tcp = false;  // tcp:// without keys: refused unless set
};

struct EndpointOptions {
  std::string address;  // ipc:///path/socket or tcp://host:port
  PeerId identity;      // of a client
  int high_water_mark = 1024;
  int64_t max_message_bytes = 0;  // 0: kMaxFrameBytes
  // Of a frame that comes in; 0: as max_message_bytes. Each peer that has connected may make us
  // hold so much before it has said who it is.
  int64_t max_receive_bytes = 0;
  bool allow_wildcard = false;  // tcp://*: refused unless set
  int linger_ms = 0;            // close() waits so long for what is queued (last words)
  int64_t allowed_uid = -1;     // ipc:// server: whose processes may connect; -1: our own user's
  CurveOptions curve;
  // Client with keys: the server does not know ours and it is of no use to go on. Once, on the
  // strand.
  std::function<void(const Error&)> on_refused;
};

// ROUTER, bound. For ipc:// the directory is made with mode 0700 and peers of another user are
// refused. Errors name the address (in use, not writable, …). Calls and callbacks happen on
// `strand`; without one the endpoint makes its own, which is right where one thread runs `io`.
Result<std::unique_ptr<Endpoint>> make_zmq_server(IoContext& io, const EndpointOptions& options,
                                                  std::shared_ptr<Executor> strand = nullptr);
// DEALER, connected; connecting goes on in the background until the server is there, and frames
// sent before are queued. After a restart of the server, or when its line breaks, it connects again
// by itself, under the same PeerId; frames may be lost.
Result<std::unique_ptr<Endpoint>> make_zmq_client(IoContext& io, const EndpointOptions& options,
                                                  std::shared_ptr<Executor> strand = nullptr);

}  // namespace refrain::ipc
