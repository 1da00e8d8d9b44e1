#include "ipc/transport/curve_guard.h"

#include <signal.h>
#include <zmq.h>

#include <bit>
#include <cstring>
#include <span>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain::ipc {
namespace {

constexpr const char* kZapAddress = "inproc://zeromq.zap.01";
constexpr const char* kMonitorAddress = "inproc://refrain.handshakes";
constexpr int kFailures = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr size_t kKeyBytes = 32;

std::string decoded(const std::string& key) {
  std::string bytes(kKeyBytes, '\0');
  REFRAIN_CHECK(zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), key.c_str()) != nullptr,
                "a key that is not Z85");
  return bytes;
}

std::string encoded(const std::string& bytes) {
  if (bytes.size() != kKeyBytes) return "(none)";
  char text[41];
  return zmq_z85_encode(text, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// Parts of one message; empty when there is none or the context ends.
std::vector<std::string> receive(void* socket) {
  std::vector<std::string> parts;
  for (bool more = true; more;) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&part);
      return {};
    }
    parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    more = zmq_msg_more(&part) != 0;
    zmq_msg_close(&part);
  }
  return parts;
}

// A peer that tries again and again fills no log.
bool is_worth_a_line(uint64_t count) { return std::has_single_bit(count); }

Result<void*> open_socket(void* context, int type) {
  void* socket = zmq_socket(context, type);
  const int linger = 0;
  if (socket == nullptr || zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) != 0)
    return fail(ErrorCode::kInternal, "no ZeroMQ socket: {}", zmq_strerror(zmq_errno()));
  return socket;
}

}  // namespace

Result<std::unique_ptr<CurveGuard>> CurveGuard::start(void* context, void* socket,
                                                      std::string address,
                                                      const std::vector<std::string>& allowed,
                                                      std::function<void()> on_refused) {
  std::unique_ptr<CurveGuard> guard(new CurveGuard());
  guard->address_ = std::move(address);
  guard->is_server_ = !allowed.empty();
  guard->on_refused_ = std::move(on_refused);
  for (const std::string& key : allowed) guard->allowed_.insert(decoded(key));
  const auto failed = [](const char* what) {
    return fail(ErrorCode::kInternal, "{}: {}", what, zmq_strerror(zmq_errno()));
  };
  void* zap = nullptr;
  if (guard->is_server_) {
    REFRAIN_ASSIGN_OR_RETURN(zap, open_socket(context, ZMQ_REP));
    if (zmq_bind(zap, kZapAddress) != 0) {
      zmq_close(zap);
      return failed("the check of keys");
    }
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

// Request: version, id, domain, peer's address, identity, mechanism, key.
// Reply: version, id, status, reason, user, metadata.
void CurveGuard::answer(void* zap) {
  const auto request = receive(zap);
  if (request.empty()) return;
  const bool well_formed = request.size() == 7 && request[0] == "1.0" && request[5] == "CURVE";
  const std::string key = well_formed ? request[6] : std::string();
  const bool let_in = allowed_.contains(key);
  if (!let_in && is_worth_a_line(++unknown_keys_))
    log::warn("{}: {} may not connect: its key {} is not in --curve-allow ({} refused so far)",
              address_, request.size() > 3 ? request[3] : "a peer", encoded(key), unknown_keys_);
  const std::string reply[] = {"1.0",
                               request.size() > 1 ? request[1] : "",
                               let_in ? "200" : "400",
                               let_in ? "" : "unknown key",
                               "",
                               ""};
  for (size_t i = 0; i < std::size(reply); ++i)
    zmq_send(zap, reply[i].data(), reply[i].size(), i + 1 < std::size(reply) ? ZMQ_SNDMORE : 0);
}

// An event is a message of two parts: 16 bits of event, 32 bits of value; the endpoint.
void CurveGuard::note(void* monitor) {
  const auto event = receive(monitor);
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
