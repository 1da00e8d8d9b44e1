// Endpoints on ZeroMQ: a socket driven by Asio through ZMQ_FD. That descriptor is edge-triggered
// and every socket call may consume its edge, so: receive until EAGAIN, then ask ZMQ_EVENTS, and
// only when it shows nothing wait for the descriptor; ask again after every send.
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <optional>
#include <random>

#include "ipc/protocol/codec.h"
#include "ipc/transport/address.h"
#include "ipc/transport/endpoint.h"
#include "ipc/transport/zmq_socket.h"
#include "runtime/actor/io_context.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain::ipc {
namespace {

namespace asio = boost::asio;

constexpr int kBatch = 64;  // messages in one turn on the strand; then others get theirs
// A host that is gone is noticed by the kernel, within 10 s: quiet lines are asked, what is sent
// has its time. ZeroMQ's own heartbeats end the process when one is due on a line that broke while
// frames were unread (an assertion of stream_engine_base.cpp in 4.3.4).
constexpr int kKeepAliveIdleS = 5, kKeepAliveIntervalS = 1, kKeepAliveCount = 5;
constexpr int kUnacknowledgedMs = 10'000;

class Part {
 public:
  Part() { zmq_msg_init(&message_); }
  ~Part() { zmq_msg_close(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  zmq_msg_t* raw() { return &message_; }
  bool more() { return zmq_msg_more(&message_) != 0; }
  std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

bool is_usable_identity(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes)
    if (byte <= std::byte{0x20} || byte >= std::byte{0x7f}) return false;
  return !bytes.empty();
}

// What is shared by the endpoint and the handlers still under way when it dies. On the strand.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(IoContext& io, std::shared_ptr<Executor> strand, ZmqSocket socket, bool is_server,
       std::optional<IpcFile> file, int64_t max_bytes)
      : strand_(std::move(strand)),
        socket_(std::move(socket)),
        is_server_(is_server),
        file_(std::move(file)),
        max_bytes_(static_cast<size_t>(max_bytes)),
        descriptor_(io.native(), socket_.get_int(ZMQ_FD)) {}

  void start(Endpoint::FrameHandler handler) {
    REFRAIN_CHECK(!handler_, "endpoint started twice");
    handler_ = std::move(handler);
    post_drain();
  }

  Status send(const PeerId& to, std::span<const std::byte> frame) {
    if (closed_) return fail(ErrorCode::kUnavailable, "the endpoint is closed");
    if (frame.size() > max_bytes_)
      return fail(ErrorCode::kTooLarge, "frame of {} bytes; at most {} are sent", frame.size(),
                  max_bytes_);
    int error = is_server_ ? socket_.send(to.data(), to.size(), true) : 0;
    if (error == 0) error = socket_.send(frame.data(), frame.size(), false);
    if (handler_ && (socket_.get_int(ZMQ_EVENTS) & ZMQ_POLLIN)) post_drain();
    if (error == 0) return {};
    if (error == EAGAIN)
      return fail(ErrorCode::kOverloaded, "the queue to {} is full", name_of(to));
    return fail(ErrorCode::kUnavailable, "no way to {}: {}", name_of(to), zmq_strerror(error));
  }

  // Called by the endpoint's destructor at the latest.
  void close() {
    if (closed_) return;
    closed_ = true;
    refused_ = socket_.refused();
    descriptor_.release();  // the descriptor is ZeroMQ's
    socket_.close();
    if (file_) file_->give_back();
    // Not here: the handler may be what is running.
    if (handler_) strand_->post([self = shared_from_this()] { self->handler_ = nullptr; });
  }

  uint64_t discarded() const { return discarded_; }
  uint64_t refused() const { return closed_ ? refused_ : socket_.refused(); }

 private:
  std::string name_of(const PeerId& to) const { return is_server_ ? to : "the server"; }

  void post_drain() {
    if (drain_posted_) return;
    drain_posted_ = true;
    strand_->post([self = shared_from_this()] { self->drain(); });
  }

  void drain() {
    drain_posted_ = false;
    for (int i = 0; i < kBatch; ++i) {
      if (closed_) return;
      if (!receive_one()) return wait();
    }
    if (!closed_) post_drain();
  }

  void wait() {
    if (waiting_) return;
    if (socket_.get_int(ZMQ_EVENTS) & ZMQ_POLLIN) return post_drain();
    waiting_ = true;
    descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                           [self = shared_from_this()](const boost::system::error_code&) {
                             self->strand_->post([self] {
                               self->waiting_ = false;
                               self->drain();
                             });
                           });
  }

  // Takes one message and hands it on, or discards it; false when there is none.
  bool receive_one() {
    Part first;
    if (!take(first)) return false;
    if (!is_server_) {
      if (first.more()) return discard_rest(first);
      handler_(PeerId(), first.bytes());
      return true;
    }
    Part frame;
    if (!first.more() || !take(frame)) return discard_rest(first);
    if (frame.more() || !is_usable_identity(first.bytes())) return discard_rest(frame);
    const auto identity = first.bytes();
    handler_(PeerId(reinterpret_cast<const char*>(identity.data()), identity.size()),
             frame.bytes());
    return true;
  }

  bool take(Part& message) {
    const int error = socket_.receive(message.raw());
    REFRAIN_CHECK(error == 0 || error == EAGAIN, "receiving: {}", zmq_strerror(error));
    return error == 0;
  }

  bool discard_rest(Part& part) {
    ++discarded_;
    while (part.more() && take(part)) {
    }
    return true;
  }

  std::shared_ptr<Executor> strand_;
  ZmqSocket socket_;
  bool is_server_;
  std::optional<IpcFile> file_;
  size_t max_bytes_;
  asio::posix::stream_descriptor descriptor_;
  Endpoint::FrameHandler handler_;
  bool drain_posted_ = false;
  bool waiting_ = false;
  bool closed_ = false;
  uint64_t discarded_ = 0;
  uint64_t refused_ = 0;  // once closed
};

class ZmqEndpoint final : public Endpoint {
 public:
  ZmqEndpoint(std::shared_ptr<Core> core, std::string address)
      : core_(std::move(core)), address_(std::move(address)) {}
  ~ZmqEndpoint() override { core_->close(); }

  void start(FrameHandler on_frame) override { core_->start(std::move(on_frame)); }
  Status send(const PeerId& to, std::span<const std::byte> frame) override {
    return core_->send(to, frame);
  }
  void close() override { core_->close(); }
  std::string address() const override { return address_; }
  uint64_t discarded() const override { return core_->discarded(); }
  uint64_t refused() const override { return core_->refused(); }

 private:
  std::shared_ptr<Core> core_;
  std::string address_;
};

int64_t max_bytes_of(const EndpointOptions& options) {
  return options.max_message_bytes > 0 ? options.max_message_bytes
                                       : static_cast<int64_t>(kMaxFrameBytes);
}

// Keys if there are any; tcp:// must have them.
Status set_keys(ZmqSocket& socket, const EndpointOptions& options, const Address& address,
                bool is_server, const std::shared_ptr<Executor>& strand) {
  const CurveOptions& curve = options.curve;
  if (curve.key_file.empty() && curve.allow_file.empty()) {
    if (address.scheme != Address::Scheme::kTcp) return {};
    if (!curve.insecure_tcp)
      return fail_field("address",
                        "{} needs --curve-key and --curve-allow (`refrain keygen` makes both), or "
                        "--insecure-tcp on a network that you trust",
                        address.text);
    if (!address.is_loopback())
      log::warn("{} is neither encrypted nor authenticated: keep it on a private network",
                address.text);
    return {};
  }
  if (curve.insecure_tcp)
    return fail_field("--insecure-tcp", "--insecure-tcp contradicts --curve-key and --curve-allow");
  if (curve.key_file.empty() || curve.allow_file.empty())
    return fail_field(curve.key_file.empty() ? "--curve-key" : "--curve-allow",
                      "--curve-key and --curve-allow go together");
  REFRAIN_ASSIGN_OR_RETURN(const CurveKeyPair own, load_curve_key(curve.key_file));
  REFRAIN_ASSIGN_OR_RETURN(const auto allowed, load_curve_allow_list(curve.allow_file));
  if (!is_server && allowed.size() != 1)
    return fail_field("--curve-allow", "{} holds {} keys; a worker needs the coordinator's alone",
                      curve.allow_file, allowed.size());
  auto on_refused = [strand, callback = options.on_refused,
                     text = fmt::format("{} refuses the key of {}: its public key {} is not in the "
                                        "coordinator's --curve-allow",
                                        address.text, curve.key_file, own.public_key)] {
    log::warn("{}", text);
    if (callback)
      strand->post([callback, text] {
        callback({ErrorCode::kUnauthenticated, text, "--curve-key"});
      });
  };
  return socket.encrypt(own, allowed, is_server, address.text, std::move(on_refused));
}

//
Status set_common(ZmqSocket& socket, const EndpointOptions& options, const Address& address) {
  if (options.high_water_mark < 1)
    return fail_field("high_water_mark", "a high-water mark of {}; at least 1 is needed",
                      options.high_water_mark);
  const std::pair<int, int> settings[] = {
      {ZMQ_LINGER, options.linger_ms},
      {ZMQ_SNDHWM, options.high_water_mark},
      {ZMQ_RCVHWM, options.high_water_mark},
      {ZMQ_HANDSHAKE_IVL, kHandshakeMs},
      {ZMQ_TCP_KEEPALIVE, 1},
      {ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveIdleS},
      {ZMQ_TCP_KEEPALIVE_INTVL, kKeepAliveIntervalS},
      {ZMQ_TCP_KEEPALIVE_CNT, kKeepAliveCount},
      {ZMQ_TCP_MAXRT, kUnacknowledgedMs},
      {ZMQ_IPV6, address.host.starts_with('[') ? 1 : 0},
  };
  for (const auto& [option, value] : settings) REFRAIN_RETURN_IF_ERROR(socket.set(option, value));
  REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_MAXMSGSIZE, options.max_receive_bytes > 0
                                                         ? options.max_receive_bytes
                                                         : max_bytes_of(options)));
  return {};
}

std::string unique_identity(const PeerId& given) {
  std::random_device entropy;
  return fmt::format("{}-{}-{:08x}", given, ::getpid(), entropy());
}

}  // namespace

Result<std::unique_ptr<Endpoint>> make_zmq_server(IoContext& io, const EndpointOptions& options,
                                                  std::shared_ptr<Executor> strand) {
  if (!strand) strand = io.make_strand();
  REFRAIN_ASSIGN_OR_RETURN(const Address address, parse_address(options.address));
  if (address.is_wildcard() && !options.allow_wildcard)
    return fail_field("address", "{} listens on every interface; name one address",
                      options.address);
  REFRAIN_ASSIGN_OR_RETURN(ZmqSocket socket, ZmqSocket::create(ZMQ_ROUTER));
  REFRAIN_RETURN_IF_ERROR(set_common(socket, options, address));
  REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_ROUTER_MANDATORY, 1));
  // A client whose line broke unseen comes again under its name, which the old line still holds.
  REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_ROUTER_HANDOVER, 1));
  REFRAIN_RETURN_IF_ERROR(set_keys(socket, options, address, true, strand));
  std::optional<IpcFile> file;
  if (address.scheme == Address::Scheme::kIpc) {
    auto taken = IpcFile::take(address.path);
    if (!taken) return forward_error(std::move(taken).error());
    file.emplace(std::move(*taken));
    const auto user =
        options.allowed_uid < 0 ? ::geteuid() : static_cast<uid_t>(options.allowed_uid);
    REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_IPC_FILTER_UID, &user, sizeof user));
  }
  if (zmq_bind(socket.native(), address.text.c_str()) != 0)
    return fail_field("address", "{} cannot be bound: {}", options.address,
                      zmq_strerror(zmq_errno()));
  std::string bound = socket.get_text(ZMQ_LAST_ENDPOINT);
  auto core = std::make_shared<Core>(io, std::move(strand), std::move(socket), true,
                                     std::move(file), max_bytes_of(options));
  return std::make_unique<ZmqEndpoint>(std::move(core), std::move(bound));
}

Result<std::unique_ptr<Endpoint>> make_zmq_client(IoContext& io, const EndpointOptions& options,
                                                  std::shared_ptr<Executor> strand) {
  if (!strand) strand = io.make_strand();
  REFRAIN_ASSIGN_OR_RETURN(const Address address, parse_address(options.address));
  if (options.identity.empty() || options.identity.size() > 200 ||
      !is_usable_identity(std::as_bytes(std::span(options.identity))))
    return fail_field("identity", "identity \"{}\" must be 1 to 200 printable characters",
                      options.identity);
  if (address.port == "*" || address.is_wildcard())
    return fail_field("address", "{}: a client needs the server's host and port", options.address);
  if (address.scheme == Address::Scheme::kIpc)
    REFRAIN_RETURN_IF_ERROR(check_ipc_directory(address.path));
  REFRAIN_ASSIGN_OR_RETURN(ZmqSocket socket, ZmqSocket::create(ZMQ_DEALER));
  REFRAIN_RETURN_IF_ERROR(set_common(socket, options, address));
  const std::string identity = unique_identity(options.identity);
  REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_ROUTING_ID, identity.data(), identity.size()));
  REFRAIN_RETURN_IF_ERROR(set_keys(socket, options, address, false, strand));
  REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_RECONNECT_IVL, kReconnectMs));
  REFRAIN_RETURN_IF_ERROR(socket.set(ZMQ_RECONNECT_IVL_MAX, kReconnectMaxMs));
  if (zmq_connect(socket.native(), address.text.c_str()) != 0)
    return fail_field("address", "{} cannot be connected to: {}", options.address,
                      zmq_strerror(zmq_errno()));
  auto core = std::make_shared<Core>(io, std::move(strand), std::move(socket), false, std::nullopt,
                                     max_bytes_of(options));
  return std::make_unique<ZmqEndpoint>(std::move(core), options.address);
}

}  // namespace refrain::ipc
