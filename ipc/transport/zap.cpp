#include "ipc/transport/zap.h"

#include <zmq.h>

#include <array>

#include "runtime/base/check.h"

namespace refrain::ipc {
namespace {

constexpr size_t kKeyBytes = 32;

}  // namespace

Result<void*> open_socket(void* context, int type) {
  void* socket = zmq_socket(context, type);
  const int linger = 0;
  if (socket == nullptr || zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) != 0)
    return fail(ErrorCode::kInternal, "no ZeroMQ socket: {}", zmq_strerror(zmq_errno()));
  return socket;
}

Result<void*> open_zap_socket(void* context) {
  REFRAIN_ASSIGN_OR_RETURN(void* zap, open_socket(context, ZMQ_REP));
  if (zmq_bind(zap, kZapAddress) == 0) return zap;
  const std::string reason = zmq_strerror(zmq_errno());
  zmq_close(zap);
  return fail(ErrorCode::kInternal, "the check of keys: {}", reason);
}

std::string decoded_key(const std::string& key) {
  std::string bytes(kKeyBytes, '\0');
  REFRAIN_CHECK(zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), key.c_str()) != nullptr,
                "a key that is not Z85");
  return bytes;
}

std::string encoded_key(const std::string& bytes) {
  if (bytes.size() != kKeyBytes) return "(none)";
  char text[41];
  return zmq_z85_encode(text, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::vector<std::string> receive_parts(void* socket) {
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

// Request: version, id, domain, peer's address, identity, mechanism, key.
// Reply: version, id, status, reason, user, metadata.
std::optional<ZapAnswer> answer_zap(void* zap, const CurveUsers& users, Denial denial) {
  const std::vector<std::string> request = receive_parts(zap);
  if (request.empty()) return std::nullopt;
  const bool well_formed = request.size() == 7 && request[0] == "1.0" && request[5] == "CURVE";
  const std::string key = well_formed ? request[6] : std::string();
  const auto user = users.find(key);
  const bool let_in = user != users.end();
  const std::array<std::string, 6> reply = {"1.0",
                                            request.size() > 1 ? request[1] : "",
                                            let_in                      ? "200"
                                            : denial == Denial::kForNow ? "300"
                                                                        : "400",
                                            let_in ? "" : "unknown key",
                                            let_in ? user->second : "",
                                            ""};
  for (size_t i = 0; i < reply.size(); ++i)
    zmq_send(zap, reply[i].data(), reply[i].size(), i + 1 < reply.size() ? ZMQ_SNDMORE : 0);
  return ZapAnswer{request.size() > 3 ? request[3] : "a peer", encoded_key(key), let_in};
}

}  // namespace refrain::ipc
