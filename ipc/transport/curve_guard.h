#pragma once
// Private to ipc/transport: watches a socket with CURVE on a thread of its own. On a server it
// answers ZeroMQ's question whether a key may come in (ZAP, RFC 27); on both sides it counts and
// logs handshakes that failed. Started before the socket is bound or connected, destroyed after its
// context.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/transport/zap.h"
#include "runtime/base/result.h"

namespace refrain::ipc {

class CurveGuard {
 public:
  // `allowed`: public keys (Z85) that a server lets in; empty on a client. `on_refused` is called
  // on the guard's thread when the server refuses a client's key; ZeroMQ does not try again then.
  static Result<std::unique_ptr<CurveGuard>> start(void* context, void* socket, std::string address,
                                                   const std::vector<std::string>& allowed,
                                                   std::function<void()> on_refused);
  ~CurveGuard();

  // Handshakes that failed: unknown key, other mechanism, no handshake in time. Any thread.
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  CurveGuard() = default;
  void run(void* zap, void* monitor);
  void answer(void* zap);
  void note(void* monitor);

  std::string address_;
  CurveUsers allowed_;
  bool is_server_ = false;
  std::function<void()> on_refused_;
  std::atomic<uint64_t> refused_ = 0;
  uint64_t unknown_keys_ = 0;  // on the thread
  std::thread thread_;
};

}  // namespace refrain::ipc
