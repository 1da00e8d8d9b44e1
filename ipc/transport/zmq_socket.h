#pragma once
// Private to ipc/transport: one ZeroMQ context with one socket, as C handles with checked calls.
// One thread at a time; closing order is socket, then context.

#include <zmq.h>

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"

namespace refrain::ipc {

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

  // 0, or the errno of zmq_send. Never blocks.
  int send(const void* data, size_t bytes, bool more);
  // Fills `parts` messages' worth: see receive() in zmq_endpoint.cpp. Never blocks.
  int receive(zmq_msg_t* message);

  void* native() const { return socket_.get(); }
  void close();  // waits for the socket's linger time

 private:
  UniqueHandle<ZmqContextTraits> context_;
  UniqueHandle<ZmqSocketTraits> socket_;  // goes first
};

}  // namespace refrain::ipc
