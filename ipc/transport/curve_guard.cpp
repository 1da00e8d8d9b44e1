#include "ipc/transport/curve_guard.h"

#include <signal.h>
#include <zmq.h>

#include <bit>
#include <cstring>

#include "ipc/transport/zap.h"
#include "runtime/base/log.h"

namespace refrain::ipc {
namespace {

constexpr const char* kMonitorAddress = "inproc://refrain.handshakes";
constexpr int kFailures = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

// A peer that tries again and again fills no log.
bool is_worth_a_line(uint64_t count) { return std::has_single_bit(count); }

}  // namespace

Result<std::unique_ptr<CurveGuard>> CurveGuard::start(void* context, void* socket,
                                                      std::string address,
                                                      const std::vector<std::string>& allowed,
                                                      std::function<void()> on_refused) {
  std::unique_ptr<CurveGuard> guard(new CurveGuard());
  guard->address_ = std::move(address);
  guard->is_server_ = !allowed.empty();
  guard->on_refused_ = std::move(on_refused);
  for (const std::string& key : allowed) guard->allowed_.emplace(decoded_key(key), "");
  const auto failed = [](const char* what) {
    return fail(ErrorCode::kInternal, "{}: {}", what, zmq_strerror(zmq_errno()));
  };
  void* zap = nullptr;
  if (guard->is_server_) {
    REFRAIN_ASSIGN_OR_RETURN(zap, open_zap_socket(context));
  }
  auto monitor = open_socket(context, ZMQ_PAIR);
  if (!monitor || zmq_socket_monitor(socket, kMonitorAddress, kFailures) != 0 ||
      zmq_connect(*monitor, kMonitorAddress) != 0) {
    if (zap != nullptr) zmq_close(zap);
    if (monitor) zmq_close(*monitor);
    return failed("the count of handshakes");
  }
  // Signals are for the threads that wait for them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  guard->thread_ =
      std::thread([self = guard.get(), zap, monitor = *monitor] { self->run(zap, monitor); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return guard;
}

CurveGuard::~CurveGuard() {
  if (thread_.joinable()) thread_.join();
}

// Until the context is terminated, which waits for these two sockets.
void CurveGuard::run(void* zap, void* monitor) {
  zmq_pollitem_t items[] = {{monitor, 0, ZMQ_POLLIN, 0}, {zap, 0, ZMQ_POLLIN, 0}};
  const int count = zap != nullptr ? 2 : 1;
  for (;;) {
    if (zmq_poll(items, count, -1) < 0) {
      if (zmq_errno() == EINTR) continue;
      break;
    }
    if ((items[0].revents & ZMQ_POLLIN) != 0) note(monitor);
    if (count == 2 && (items[1].revents & ZMQ_POLLIN) != 0) answer(zap);
  }
  if (zap != nullptr) zmq_close(zap);
  zmq_close(monitor);
}

void CurveGuard::answer(void* zap) {
  const auto answer = answer_zap(zap, allowed_);
  if (answer && !answer->let_in && is_worth_a_line(++unknown_keys_))
    log::warn("{}: {} may not connect: its key {} is not in --curve-allow ({} refused so far)",
              address_, answer->peer, answer->key, unknown_keys_);
}

// An event is a message of two parts: 16 bits of event, 32 bits of value; the endpoint.
void CurveGuard::note(void* monitor) {
  const auto event = receive_parts(monitor);
  if (event.size() != 2 || event[0].size() != 6) return;
  uint16_t kind = 0;
  std::memcpy(&kind, event[0].data(), sizeof kind);
  if ((kind & kFailures) == 0) return;
  const uint64_t count = refused_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (is_server_) {
    if (kind != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && is_worth_a_line(count))
      log::warn("{}: a peer without a fitting key was turned away ({} so far)", address_, count);
    return;
  }
  if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
    if (on_refused_) on_refused_();
  } else if (is_worth_a_line(count)) {
    log::warn(
        "{}: no encrypted connection ({} tries): has the coordinator keys, and does "
        "--curve-allow hold its public key?",
        address_, count);
  }
}

}  // namespace refrain::ipc
