#include "runtime/server/http_session.h"

#include <poll.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <exception>

#include "runtime/base/log.h"
#include "runtime/server/url.h"

namespace refrain {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
constexpr auto kWatchPause = std::chrono::milliseconds(100);
constexpr auto kLingerTime = std::chrono::seconds(1);
constexpr size_t kReadAhead = size_t{64} << 10;
constexpr size_t kLingerBytes = size_t{1} << 20;

int status_of(const beast::error_code& error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit) return 431;
  return 400;
}

// Counts a request from its last byte in to its answer's last byte out.
class Answering {
 public:
  explicit Answering(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Answering() { --count_; }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

 private:
  std::atomic<int>& count_;
};

// One write, and with TLS one record.
std::string framed_chunk(const std::string& body) {
  return fmt::format("{:x}\r\n{}\r\n", body.size(), body);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// All but the body.
HttpRequest describe(const http::request<ArrivingBody>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t mark = target.find('?');
  request.path = url_decode(target.substr(0, mark));
  if (mark != std::string::npos) request.query = parse_query(target.substr(mark + 1));
  for (const auto& field : message) {
    request.headers[lower(std::string(field.name_string()))] = std::string(field.value());
  }
  return request;
}

HttpRequest to_request(http::request<ArrivingBody> message, std::shared_ptr<BodyCharge> charge) {
  HttpRequest request = describe(message);
  request.body = std::move(message.body());
  request.body_charge = std::move(charge);
  return request;
}

}  // namespace

// Forwards to the session's strand; keeps the session alive while an answer is owed.
class HttpSession::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<HttpSession> session, uint64_t number)
      : session_(std::move(session)), number_(number) {}

  using HttpExchange::reply;
  void reply(HttpReply reply) override { push({Part::Kind::kReply, std::move(reply)}); }
  void begin_stream(int status, std::string content_type, HttpHeaders headers) override {
    push({Part::Kind::kHead, {status, std::move(content_type), {}, std::move(headers)}});
  }
  void write(std::string chunk) override {
    if (!chunk.empty()) push({Part::Kind::kChunk, {0, {}, std::move(chunk), {}}});
  }
  void end_stream() override { push({Part::Kind::kEnd, {}}); }
  void on_disconnect(std::function<void()> handler) override {
    net::post(session_->executor(),
              [session = session_, number = number_, handler = std::move(handler)]() mutable {
                if (number != session->exchange_ || session->ended_) return;
                if (session->gone_) return handler();
                session->on_disconnect_ = std::move(handler);
              });
  }

 private:
  void push(Part part) {
    net::post(session_->executor(),
              [session = session_, number = number_, part = std::move(part)]() mutable {
                session->push(number, std::move(part));
              });
  }
  std::shared_ptr<HttpSession> session_;
  uint64_t number_;
};

HttpSession::HttpSession(net::ip::tcp::socket socket, std::shared_ptr<HttpShared> shared)
    : stream_(std::move(socket), shared->tls),
      buffer_(shared->options.max_header_bytes + kReadAhead),
      wake_(stream_.get_executor()),
      watch_again_(stream_.get_executor()),
      shared_(std::move(shared)) {
  ++shared_->connections;
}

HttpSession::~HttpSession() { --shared_->connections; }

void HttpSession::close() {
  client_left();
  beast::error_code ignored;  // closing a socket that is already closed is no failure
  stream_.socket().close(ignored);
}

net::awaitable<void> HttpSession::run() {
  const auto self = shared_from_this();
  beast::error_code option_error;  // a socket without the option still works
  stream_.socket().set_option(net::ip::tcp::no_delay(true), option_error);
  if (!co_await stream_.handshake(shared_->options.header_timeout)) co_return;
  for (bool first = true; keep_alive_ && !shared_->stopping; first = false) {
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
    parser.body_limit(shared_->options.max_body_bytes);
    auto charge =
        std::make_shared<BodyCharge>(shared_->body_bytes, shared_->options.max_body_bytes_in_all);
    if (!co_await read_request(parser, *charge, first)) break;
    version_ = parser.get().version();
    keep_alive_ = parser.get().keep_alive();
    head_only_ = parser.get().method() == http::verb::head;
    ++exchange_;
    ended_ = false;
    const Answering answering(shared_->answering);
    auto exchange = std::make_shared<Exchange>(self, exchange_);
    try {
      shared_->handler(to_request(parser.release(), std::move(charge)), exchange);
    } catch (const std::exception& error) {
      log::error("request handler: {}", error.what());
      exchange->reply(500, "application/json", shared_->options.error_body(500, "internal error"),
                      {});
    }
    exchange.reset();
    if (!co_await answer()) break;
  }
  co_await stream_.end(kLingerTime);
}

net::awaitable<bool> HttpSession::read_header(Parser& parser, bool first) {
  if (buffer_.size() == 0) {
    stream_.expires_after(first ? shared_->options.header_timeout : shared_->options.idle_timeout);
    const auto [error, bytes] = co_await stream_.async_read_some(buffer_.prepare(4096), kAwait);
    if (error) co_return false;
    buffer_.commit(bytes);
  }
  // The first request's time runs from the connection's begin.
  if (!first) stream_.expires_after(shared_->options.header_timeout);
  const auto [error, bytes] = co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  if (error == http::error::end_of_stream || error == beast::error::timeout) co_return false;
  if (error) {
    co_await refuse(status_of(error), error.message());
    co_return false;
  }
  if (too_many_fields(parser)) {
    co_await refuse(431, "too many header fields");
    co_return false;
  }
  if (auto wrong = framing_error(parser.get())) {
    co_await refuse(400, std::move(*wrong));
    co_return false;
  }
  co_return true;
}

bool HttpSession::too_many_fields(const Parser& parser) const {
  const auto fields = std::distance(parser.get().begin(), parser.get().end());
  return static_cast<size_t>(fields) > shared_->options.max_header_fields;
}

// Everything that a body can be refused for before it is read.
net::awaitable<bool> HttpSession::may_send_body(const Parser& parser) {
  if (shared_->options.check_head) {
    if (auto refusal = shared_->options.check_head(describe(parser.get()))) {
      co_await refuse(std::move(*refusal));
      co_return false;
    }
  }
  if (!beast::iequals(parser.get()[http::field::expect], "100-continue")) co_return true;
  http::response<http::empty_body> proceed(http::status::continue_, 11);
  const auto [error, bytes] = co_await http::async_write(stream_, proceed, kAwait);
  co_return !error;
}

net::awaitable<bool> HttpSession::read_request(Parser& parser, BodyCharge& charge, bool first) {
  if (!co_await read_header(parser, first)) co_return false;
  stream_.expires_after(shared_->options.body_timeout);
  if (!parser.is_done() && !co_await may_send_body(parser)) co_return false;
  while (!parser.is_done()) {
    const auto [error, bytes] = co_await http::async_read_some(stream_, buffer_, parser, kAwait);
    if (error) {
      if (error != beast::error::timeout) co_await refuse(status_of(error), error.message());
      co_return false;
    }
    if (!charge.grow_to(parser.get().body().size())) {
      co_await refuse(503, "too many large requests at once");
      co_return false;
    }
    if (too_many_fields(parser)) {  // with those behind a chunked body
      co_await refuse(400, "too many trailer fields");
      co_return false;
    }
  }
  stream_.expires_never();
  co_return true;
}

void HttpSession::push(uint64_t exchange, Part part) {
  if (exchange != exchange_ || ended_ || gone_) return;
  ended_ = part.kind == Part::Kind::kReply || part.kind == Part::Kind::kEnd;
  buffered_bytes_ += part.body.size();
  const bool slow =
      part.kind == Part::Kind::kChunk && buffered_bytes_ > shared_->options.max_buffered_bytes;
  parts_.push_back(std::move(part));
  if (slow) {
    log::warn("a client reads too slowly; {} bytes wait for it, cut off", buffered_bytes_);
    client_left();
    stream_.close();
  }
  wake_.cancel();
}

void HttpSession::client_left() {
  if (gone_) return;
  gone_ = true;
  parts_.clear();
  wake_.cancel();
  if (on_disconnect_ && !ended_) on_disconnect_();
  on_disconnect_ = nullptr;
}

// While an answer is being made nothing is read. A peer that has closed shows as readable and hung
// up, also behind bytes it sent before (a pipelined request); those alone are looked at again
// later.
void HttpSession::watch_disconnect() {
  stream_.socket().async_wait(
      net::ip::tcp::socket::wait_read,
      [self = shared_from_this(), number = exchange_](const beast::error_code& error) {
        if (error || number != self->exchange_ || self->ended_) return;
        pollfd look{self->stream_.socket().native_handle(), POLLRDHUP, 0};
        if (::poll(&look, 1, 0) > 0) return self->client_left();
        self->watch_again_.expires_after(kWatchPause);
        self->watch_again_.async_wait([self, number](const beast::error_code& cancelled) {
          if (!cancelled && number == self->exchange_ && !self->ended_) self->watch_disconnect();
        });
      });
}

net::awaitable<bool> HttpSession::answer() {
  watch_disconnect();
  bool finished = false, events = false;
  while (!finished && !gone_) {
    if (parts_.empty()) {
      if (events) {
        wake_.expires_after(shared_->options.keep_alive);
      } else {
        wake_.expires_at(net::steady_timer::time_point::max());
      }
      const auto [woken] = co_await wake_.async_wait(kAwait);
      if (woken || !parts_.empty()) continue;
      parts_.emplace_back(Part::Kind::kChunk, HttpReply{0, {}, ": keep-alive\n\n", {}});
      buffered_bytes_ += parts_.front().body.size();
    }
    const Part part = std::move(parts_.front());
    parts_.pop_front();
    if (part.kind == Part::Kind::kHead) events = part.content_type.starts_with("text/event-stream");
    stream_.expires_after(shared_->options.write_timeout);
    if (!co_await write_part(part)) client_left();
    buffered_bytes_ -= std::min(buffered_bytes_, part.body.size());
    finished = part.kind == Part::Kind::kReply || part.kind == Part::Kind::kEnd;
  }
  on_disconnect_ = nullptr;
  if (gone_) co_return false;
  stream_.expires_never();
  stream_.socket().cancel();  // the watch
  watch_again_.cancel();
  buffered_bytes_ = 0;
  co_return keep_alive_;
}

net::awaitable<bool> HttpSession::write_part(const Part& part) {
  beast::error_code error;
  if (part.kind == Part::Kind::kReply || part.kind == Part::Kind::kHead) {
    const bool whole = part.kind == Part::Kind::kReply;
    http::response<http::string_body> response(static_cast<http::status>(part.status), version_);
    response.set(http::field::content_type, part.content_type);
    for (const auto& [name, value] : part.headers) response.set(name, value);
    response.keep_alive(keep_alive_ && !shared_->stopping);
    if (whole) {
      response.body() = part.body;
      response.prepare_payload();
      if (head_only_) response.body().clear();
      std::tie(error, std::ignore) = co_await http::async_write(stream_, response, kAwait);
    } else {
      if (version_ >= 11) {
        response.chunked(true);
      } else {  // the end of the connection is the end of the answer
        keep_alive_ = false;
        response.keep_alive(false);
      }
      http::response_serializer<http::string_body> serializer(response);
      std::tie(error, std::ignore) = co_await http::async_write_header(stream_, serializer, kAwait);
    }
  } else if (version_ < 11) {
    std::tie(error, std::ignore) =
        co_await net::async_write(stream_, net::buffer(part.body), kAwait);
  } else {  // an empty chunk is the last one
    const std::string chunk = framed_chunk(part.body);
    std::tie(error, std::ignore) = co_await net::async_write(stream_, net::buffer(chunk), kAwait);
  }
  co_return !error;
}

net::awaitable<void> HttpSession::refuse(int status, std::string message) {
  HttpReply reply;
  reply.status = status;
  reply.body = shared_->options.error_body(status, message);
  co_await refuse(std::move(reply));
}

net::awaitable<void> HttpSession::refuse(HttpReply reply) {
  keep_alive_ = false;
  stream_.expires_after(shared_->options.write_timeout);
  const Part part(Part::Kind::kReply, std::move(reply));
  if (!co_await write_part(part)) co_return;
  // What the client still sends is read and thrown away for a while: closing a socket with unread
  // bytes would take the answer with it.
  beast::error_code gone;
  stream_.socket().shutdown(net::ip::tcp::socket::shutdown_send, gone);
  stream_.expires_after(kLingerTime);
  std::array<char, 16384> waste;
  for (size_t total = 0; total < kLingerBytes;) {
    const auto [error, bytes] = co_await stream_.tcp().async_read_some(net::buffer(waste), kAwait);
    if (error) co_return;
    total += bytes;
  }
}

}  // namespace refrain
