#include "ipc/transport/zmq_socket.h"

#include <cerrno>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"

namespace refrain::ipc {

void ZmqContextTraits::close(Type context) {
  while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR) {
  }
}

void ZmqSocketTraits::close(Type socket) { zmq_close(socket); }

Result<ZmqSocket> ZmqSocket::create(int type) {
  ZmqSocket socket;
  socket.context_.reset(zmq_ctx_new());
  if (!socket.context_)
    return fail(ErrorCode::kInternal, "no ZeroMQ context: {}", zmq_strerror(zmq_errno()));
  socket.socket_.reset(zmq_socket(socket.context_.get(), type));
  if (!socket.socket_)
    return fail(ErrorCode::kInternal, "no ZeroMQ socket: {}", zmq_strerror(zmq_errno()));
  return socket;
}

Status ZmqSocket::set(int option, const void* value, size_t bytes) {
  if (zmq_setsockopt(socket_.get(), option, value, bytes) != 0)
    return fail(ErrorCode::kInternal, "ZeroMQ refuses option {}: {}", option,
                zmq_strerror(zmq_errno()));
  return {};
}

Status ZmqSocket::set(int option, int value) { return set(option, &value, sizeof value); }
Status ZmqSocket::set(int option, int64_t value) { return set(option, &value, sizeof value); }

int ZmqSocket::get_int(int option) const {
  int value = 0;
  size_t bytes = sizeof value;
  const int rc = zmq_getsockopt(socket_.get(), option, &value, &bytes);
  REFRAIN_CHECK(rc == 0, "ZeroMQ option {}: {}", option, zmq_strerror(zmq_errno()));
  return value;
}

std::string ZmqSocket::get_text(int option) const {
  std::string value(512, '\0');
  size_t bytes = value.size();
  const int rc = zmq_getsockopt(socket_.get(), option, value.data(), &bytes);
  REFRAIN_CHECK(rc == 0 && bytes > 0, "ZeroMQ option {}: {}", option, zmq_strerror(zmq_errno()));
  value.resize(bytes - 1);
  return value;
}

int ZmqSocket::send(const void* data, size_t bytes, bool more) {
  while (zmq_send(socket_.get(), data, bytes, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0)
    if (zmq_errno() != EINTR) return zmq_errno();
  return 0;
}

int ZmqSocket::receive(zmq_msg_t* message) {
  while (zmq_msg_recv(message, socket_.get(), ZMQ_DONTWAIT) < 0)
    if (zmq_errno() != EINTR) return zmq_errno();
  return 0;
}

Status ZmqSocket::encrypt(const CurveKeyPair& own, const std::vector<std::string>& allowed,
                          bool is_server, const std::string& address,
                          std::function<void()> on_refused) {
  // ZeroMQ asks for a decision about keys only where a domain is set, and refuses without an
  // answer.
  constexpr std::string_view kDomain = "refrain";
  const auto set_text = [this](int option, std::string_view text) {
    return set(option, text.data(), text.size());
  };
  REFRAIN_RETURN_IF_ERROR(set_text(ZMQ_CURVE_SECRETKEY, own.secret_key));
  if (is_server) {
    REFRAIN_RETURN_IF_ERROR(set(ZMQ_CURVE_SERVER, 1));
    REFRAIN_RETURN_IF_ERROR(set_text(ZMQ_ZAP_DOMAIN, kDomain));
  } else {
    REFRAIN_CHECK(allowed.size() == 1, "a client has {} servers", allowed.size());
    REFRAIN_RETURN_IF_ERROR(set_text(ZMQ_CURVE_PUBLICKEY, own.public_key));
    REFRAIN_RETURN_IF_ERROR(set_text(ZMQ_CURVE_SERVERKEY, allowed.front()));
  }
  REFRAIN_ASSIGN_OR_RETURN(
      guard_,
      CurveGuard::start(context_.get(), socket_.get(), address,
                        is_server ? allowed : std::vector<std::string>(), std::move(on_refused)));
  return {};
}

void ZmqSocket::close() {
  socket_.reset();
  context_.reset();  // ends the guard's thread
  guard_.reset();
}

}  // namespace refrain::ipc
