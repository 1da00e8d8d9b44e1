#include "ipc/transport/rank_sockets.h"

#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/transport/address.h"
#include "ipc/transport/zmq_socket.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain::ipc {
namespace {

constexpr int kLingerMs = 200;   // of last words
constexpr int kQueue = 64;       // frames; two exchanges and last words are on their way at most
constexpr int kCurveBytes = 64;  // at most, around a frame
constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;

Status set(void* socket, int option, const void* value, size_t bytes) {
  if (zmq_setsockopt(socket, option, value, bytes) == 0) return {};
  return fail(ErrorCode::kInternal, "ZeroMQ refuses option {}: {}", option,
              zmq_strerror(zmq_errno()));
}
Status set(void* socket, int option, int value) {
  return set(socket, option, &value, sizeof value);
}
Status set(void* socket, int option, const std::string& text) {
  return set(socket, option, text.data(), text.size());
}

Status set_queue(void* socket, const Address& address) {
  const std::pair<int, int> settings[] = {
      {ZMQ_SNDHWM, kQueue},
      {ZMQ_RCVHWM, kQueue},
      {ZMQ_HANDSHAKE_IVL, kHandshakeMs},
      {ZMQ_IPV6, address.host.starts_with('[') ? 1 : 0},
  };
  for (const auto& [option, value] : settings) REFRAIN_RETURN_IF_ERROR(set(socket, option, value));
  return {};
}

// A socket that sends hears once in a millisecond, at most, what has left its queue: by then 64
// frames may have come and gone. Asked for its events it hears all.
bool has_room(void* socket) {
  int events = 0;
  size_t bytes = sizeof events;
  return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &bytes) == 0 && (events & ZMQ_POLLOUT) != 0;
}

Result<Address> parse_tcp(const std::string& text) {
  REFRAIN_ASSIGN_OR_RETURN(Address address, parse_address(text));
  if (address.scheme != Address::Scheme::kTcp)
    return fail_field("address", "ranks connect to each other by tcp://host:port, not by {}", text);
  if (address.is_wildcard())
    return fail_field("address",
                      "{} listens on every interface; name the address that the other "
                      "ranks reach",
                      text);
  return address;
}

}  // namespace

struct RankSockets::Message {
  Message() { zmq_msg_init(&raw); }
  ~Message() { zmq_msg_close(&raw); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  zmq_msg_t raw;
};

RankSockets::RankSockets() : message_(std::make_unique<Message>()) {}

RankSockets::~RankSockets() {
  for (Peer& peer : peers_) {
    if (peer.monitor != nullptr) note(peer);
    if (peer.socket != nullptr && peer.state != State::kLost)
      set(peer.socket, ZMQ_LINGER, kLingerMs);
    close(peer);
  }
  if (listener_ != nullptr) zmq_close(listener_);
  if (zap_ != nullptr) zmq_close(zap_);
  while (context_ != nullptr && zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
  }
}

Result<std::unique_ptr<RankSockets>> RankSockets::listen(const std::string& address,
                                                         size_t max_bytes, bool peers_change) {
  std::unique_ptr<RankSockets> sockets(new RankSockets());
  sockets->changes_ = peers_change;
  REFRAIN_RETURN_IF_ERROR(sockets->bind(address, max_bytes));
  return sockets;
}

Status RankSockets::bind(const std::string& text, size_t max_bytes) {
  REFRAIN_ASSIGN_OR_RETURN(const Address address, parse_tcp(text));
  REFRAIN_ASSIGN_OR_RETURN(keys_, make_curve_key_pair());
  context_ = zmq_ctx_new();
  if (context_ == nullptr)
    return fail(ErrorCode::kInternal, "no ZeroMQ context: {}", zmq_strerror(zmq_errno()));
  REFRAIN_ASSIGN_OR_RETURN(zap_, open_zap_socket(context_));
  REFRAIN_ASSIGN_OR_RETURN(listener_, open_socket(context_, ZMQ_PULL));
  REFRAIN_RETURN_IF_ERROR(set_queue(listener_, address));
  const auto most = static_cast<int64_t>(max_bytes) + kCurveBytes;
  REFRAIN_RETURN_IF_ERROR(set(listener_, ZMQ_MAXMSGSIZE, &most, sizeof most));
  REFRAIN_RETURN_IF_ERROR(set(listener_, ZMQ_CURVE_SERVER, 1));
  REFRAIN_RETURN_IF_ERROR(set(listener_, ZMQ_CURVE_SECRETKEY, keys_.secret_key));
  REFRAIN_RETURN_IF_ERROR(set(listener_, ZMQ_ZAP_DOMAIN, std::string("ranks")));
  if (zmq_bind(listener_, address.text.c_str()) != 0) {
    const int error = zmq_errno();
    const std::string what =
        fmt::format("{} cannot be bound for the other ranks: {}", text, zmq_strerror(error));
    if (error == EADDRINUSE) return fail(ErrorCode::kUnavailable, "{}", what);  // may go free
    return fail_field("local-addr", "{}", what);
  }
  char bound[512];
  size_t bytes = sizeof bound;
  if (zmq_getsockopt(listener_, ZMQ_LAST_ENDPOINT, bound, &bytes) != 0)
    return fail(ErrorCode::kInternal, "no address: {}", zmq_strerror(zmq_errno()));
  address_ = bound;
  return {};
}

Status RankSockets::connect(const std::vector<RankAddress>& ranks, int own) {
  peers_.resize(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    uint8_t key[32];
    if (ranks[rank].key.size() != 40 || zmq_z85_decode(key, ranks[rank].key.c_str()) == nullptr)
      return fail_field("peers", "rank {} has no key", rank);
    if (static_cast<int>(rank) == own) continue;
    if (!numbers_.emplace(ranks[rank].key, static_cast<int>(rank)).second)
      return fail_field("peers", "rank {} has the key of another rank", rank);
    users_[decoded_key(ranks[rank].key)] = ranks[rank].key;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (static_cast<int>(rank) == own) continue;
    REFRAIN_RETURN_IF_ERROR(connect_to(static_cast<int>(rank), ranks[rank]));
  }
  return {};
}

Status RankSockets::add(int peer, const RankAddress& address) {
  uint8_t key[32];
  if (address.key.size() != 40 || zmq_z85_decode(key, address.key.c_str()) == nullptr)
    return fail_field("peers", "{} has no key", address.address);
  peers_.resize(std::max(peers_.size(), static_cast<size_t>(peer) + 1));
  users_[decoded_key(address.key)] = address.key;
  numbers_[address.key] = peer;
  return connect_to(peer, address);
}

void RankSockets::remove(int peer) {
  const auto number =
      std::ranges::find_if(numbers_, [peer](const auto& entry) { return entry.second == peer; });
  if (number != numbers_.end()) {  // else its key has another number already
    users_.erase(decoded_key(number->first));
    numbers_.erase(number);
  }
  Peer& of = peers_.at(static_cast<size_t>(peer));
  close(of);
  of = {nullptr, nullptr, State::kLost};
}

// The socket stops telling of itself before its monitor goes: an event that nobody can take would
// hold ZeroMQ's thread, and with it every other connection, for ever.
void RankSockets::close(Peer& peer) {
  if (peer.socket != nullptr) {
    zmq_socket_monitor(peer.socket, nullptr, 0);
    zmq_close(peer.socket);
  }
  if (peer.monitor != nullptr) zmq_close(peer.monitor);
}

Status RankSockets::connect_to(int rank, const RankAddress& to) {
  REFRAIN_ASSIGN_OR_RETURN(const Address address, parse_tcp(to.address));
  void*& socket = peers_[static_cast<size_t>(rank)].socket;
  REFRAIN_ASSIGN_OR_RETURN(socket, open_socket(context_, ZMQ_PUSH));
  REFRAIN_RETURN_IF_ERROR(set_queue(socket, address));
  REFRAIN_RETURN_IF_ERROR(set(socket, ZMQ_RECONNECT_IVL, kReconnectMs));
  REFRAIN_RETURN_IF_ERROR(set(socket, ZMQ_RECONNECT_IVL_MAX, kReconnectMaxMs));
  REFRAIN_RETURN_IF_ERROR(set(socket, ZMQ_CURVE_SERVERKEY, to.key));
  REFRAIN_RETURN_IF_ERROR(set(socket, ZMQ_CURVE_PUBLICKEY, keys_.public_key));
  REFRAIN_RETURN_IF_ERROR(set(socket, ZMQ_CURVE_SECRETKEY, keys_.secret_key));
  REFRAIN_RETURN_IF_ERROR(make_monitor(rank));
  if (zmq_connect(socket, to.address.c_str()) != 0)
    return fail_field("peers", "rank {} at {} cannot be connected to: {}", rank, to.address,
                      zmq_strerror(zmq_errno()));
  return {};
}

Status RankSockets::make_monitor(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  REFRAIN_ASSIGN_OR_RETURN(peer.monitor, open_socket(context_, ZMQ_PAIR));
  const std::string name = fmt::format("inproc://rank-{}", rank);
  if (zmq_socket_monitor(peer.socket, name.c_str(), kEvents) != 0 ||
      zmq_connect(peer.monitor, name.c_str()) != 0)
    return fail(ErrorCode::kInternal, "the connection to rank {} cannot be watched: {}", rank,
                zmq_strerror(zmq_errno()));
  return {};
}

Status RankSockets::send(int rank, std::span<const std::byte> head,
                         std::span<const std::byte> body) {
  Message message;
  if (zmq_msg_init_size(&message.raw, head.size() + body.size()) != 0)
    return fail(ErrorCode::kInternal, "no frame of {} bytes", head.size() + body.size());
  auto* to = static_cast<std::byte*>(zmq_msg_data(&message.raw));
  std::memcpy(to, head.data(), head.size());
  if (!body.empty()) std::memcpy(to + head.size(), body.data(), body.size());
  if (peer(rank).socket == nullptr)
    return fail(ErrorCode::kUnavailable, "there is no connection to rank {}", rank);
  while (zmq_msg_send(&message.raw, peer(rank).socket, ZMQ_DONTWAIT) < 0) {
    if (zmq_errno() == EINTR || (zmq_errno() == EAGAIN && has_room(peer(rank).socket))) continue;
    return fail(ErrorCode::kUnavailable, "rank {} takes no frames: {}", rank,
                zmq_strerror(zmq_errno()));
  }
  return {};
}

std::optional<RankSockets::Frame> RankSockets::receive(std::chrono::milliseconds timeout) {
  if (auto frame = take()) return frame;
  std::vector<zmq_pollitem_t> items = {{listener_, 0, ZMQ_POLLIN, 0}, {zap_, 0, ZMQ_POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (peer.monitor != nullptr) items.push_back({peer.monitor, 0, ZMQ_POLLIN, 0});
  }
  if (wake_fd_ >= 0) items.push_back({nullptr, wake_fd_, ZMQ_POLLIN, 0});
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    const int ready =
        zmq_poll(items.data(), static_cast<int>(items.size()), std::max<int64_t>(0, left.count()));
    REFRAIN_CHECK(ready >= 0 || zmq_errno() == EINTR, "waiting for ranks: {}",
                  zmq_strerror(zmq_errno()));
    // Where peers come and go one may be here before it was told of; it comes again.
    const Denial denial = changes_ ? Denial::kForNow : Denial::kForGood;
    if (const auto asked = answer_zap(zap_, users_, denial); asked && !asked->let_in)
      log::at(changes_ ? log::Level::kDebug : log::Level::kWarning,
              "{}: {} may not connect: its key {} is no rank's of this group", address_,
              asked->peer, asked->key);
    bool lost = false;
    for (Peer& peer : peers_) lost |= peer.monitor != nullptr && note(peer);
    if (auto frame = take()) return frame;
    const bool woken = wake_fd_ >= 0 && ready > 0 && items.back().revents != 0;
    if (lost || woken || left.count() <= 0) return std::nullopt;
  }
}

// The ranks are their keys', so that none can speak for another one.
std::optional<RankSockets::Frame> RankSockets::take() {
  while (zmq_msg_recv(&message_->raw, listener_, ZMQ_DONTWAIT) >= 0) {
    const char* user = zmq_msg_gets(&message_->raw, "User-Id");
    REFRAIN_CHECK(user != nullptr, "a frame of nobody");
    const auto from = numbers_.find(std::string_view(user));
    if (from == numbers_.end()) continue;  // of a peer that was removed
    return Frame{from->second,
                 {static_cast<const std::byte*>(zmq_msg_data(&message_->raw)),
                  zmq_msg_size(&message_->raw)}};
  }
  REFRAIN_CHECK(zmq_errno() == EAGAIN || zmq_errno() == EINTR, "receiving of ranks: {}",
                zmq_strerror(zmq_errno()));
  return std::nullopt;
}

// Whether the connection has ended. An event is 16 bits of kind, 32 bits of value; the endpoint.
bool RankSockets::note(Peer& peer) {
  bool lost = false;
  while (true) {
    const std::vector<std::string> event = receive_parts(peer.monitor);
    if (event.size() != 2 || event[0].size() != 6) return lost;
    uint16_t kind = 0;
    std::memcpy(&kind, event[0].data(), sizeof kind);
    if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED && peer.state == State::kConnecting)
      peer.state = State::kConnected;
    if (kind == ZMQ_EVENT_DISCONNECTED && peer.state == State::kConnected) {
      peer.state = State::kLost;
      lost = true;
    }
  }
}

}  // namespace refrain::ipc
