#pragma once
// Private to ipc/transport: one ZeroMQ context with one socket, as C handles with checked calls.
// One thread at a time; closing order is socket, then context.

#include <zmq.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ipc/transport/curve.h"
#include "ipc/transport/curve_guard.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"

namespace refrain::ipc {

inline constexpr int kHandshakeMs = 2'000;
inline constexpr int kReconnectMs = 20;
inline constexpr int kReconnectMaxMs = 500;

struct ZmqContextTraits {
  using Type = void*;
  static Type invalid() { return nullptr; }
  static void close(Type context);
};
struct ZmqSocketTraits {
  using Type = void*;
  static Type invalid() { return nullptr; }
  static void close(Type socket);
};

class ZmqSocket {
 public:
  // `type`: ZMQ_ROUTER or ZMQ_DEALER.
  static Result<ZmqSocket> create(int type);

  Status set(int option, int value);
  Status set(int option, int64_t value);
  Status set(int option, const void* value, size_t bytes);
  int get_int(int option) const;
  std::string get_text(int option) const;

  // Turns CURVE on, before the socket is bound or connected. A server lets in the keys of
  // `allowed`; a client connects to the one server whose key that is, and calls `on_refused` (on
  // another thread) when that server does not know its own key.
  Status encrypt(const CurveKeyPair& own, const std::vector<std::string>& allowed, bool is_server,
                 const std::string& address, std::function<void()> on_refused);
  // Peers that a CURVE handshake kept out.
  uint64_t refused() const { return guard_ ? guard_->refused() : 0; }

  // 0, or the errno of zmq_send. Never blocks.
  int send(const void* data, size_t bytes, bool more);
  // Fills `parts` messages' worth: see receive() in zmq_endpoint.cpp. Never blocks.
  int receive(zmq_msg_t* message);

  void* native() const { return socket_.get(); }
  void close();  // waits for the socket's linger time

 private:
  std::unique_ptr<CurveGuard> guard_;  // goes last
  UniqueHandle<ZmqContextTraits> context_;
  UniqueHandle<ZmqSocketTraits> socket_;  // goes first
};

}  // namespace refrain::ipc
