#include "runtime/server/http_session.h"

#include <poll.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/chunk_encode.hpp>
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
constexpr auto kAwait = net::as_tuple(net::use_awaitable);
constexpr auto kWatchPause = std::chrono::milliseconds(100);
constexpr auto kLingerTime = std::chrono::seconds(1);
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

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

// Forwards to the session's strand; keeps the session alive while an answer is owed.
class HttpSession::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<HttpSession> session, uint64_t number)
      : session_(std::move(session)), number_(number) {}

  void reply(int status, std::string content_type, std::string body, HttpHeaders headers) override {
    push(
        {Part::Kind::kReply, status, std::move(content_type), std::move(body), std::move(headers)});
  }
  void begin_stream(int status, std::string content_type, HttpHeaders headers) override {
    push({Part::Kind::kHead, status, std::move(content_type), {}, std::move(headers)});
  }
  void write(std::string chunk) override {
    if (!chunk.empty()) push({Part::Kind::kChunk, 0, {}, std::move(chunk), {}});
  }
  void end_stream() override { push({Part::Kind::kEnd, 0, {}, {}, {}}); }
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
    : stream_(std::move(socket)),
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
  for (bool first = true; keep_alive_ && !shared_->stopping; first = false) {
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
    parser.body_limit(shared_->options.max_body_bytes);
    if (!co_await read_request(parser, first)) break;
    version_ = parser.get().version();
    keep_alive_ = parser.get().keep_alive();
    head_only_ = parser.get().method() == http::verb::head;
    ++exchange_;
    ended_ = false;
    const Answering answering(shared_->answering);
    auto exchange = std::make_shared<Exchange>(self, exchange_);
    try {
      shared_->handler(to_request(parser), exchange);
    } catch (const std::exception& error) {
      log::error("request handler: {}", error.what());
      exchange->reply(500, "application/json", shared_->options.error_body(500, "internal error"),
                      {});
    }
    exchange.reset();
    if (!co_await answer()) break;
  }
  beast::error_code ignored;  // the peer may have closed first
  stream_.socket().shutdown(net::ip::tcp::socket::shutdown_send, ignored);
}

net::awaitable<bool> HttpSession::read_request(Parser& parser, bool first) {
  if (buffer_.size() == 0) {
    stream_.expires_after(first ? shared_->options.header_timeout : shared_->options.idle_timeout);
    const auto [error, bytes] = co_await stream_.async_read_some(buffer_.prepare(4096), kAwait);
    if (error) co_return false;
    buffer_.commit(bytes);
  }
  stream_.expires_after(shared_->options.header_timeout);
  const auto [header_error, header_bytes] =
      co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  if (header_error == http::error::end_of_stream || header_error == beast::error::timeout) {
    co_return false;
  }
  if (header_error) {
    co_await refuse(status_of(header_error), header_error.message());
    co_return false;
  }
  const auto fields = std::distance(parser.get().begin(), parser.get().end());
  if (static_cast<size_t>(fields) > shared_->options.max_header_fields) {
    co_await refuse(431, "too many header fields");
    co_return false;
  }
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> proceed(http::status::continue_, 11);
    const auto [error, bytes] = co_await http::async_write(stream_, proceed, kAwait);
    if (error) co_return false;
  }
  stream_.expires_after(shared_->options.body_timeout);
  const auto [error, bytes] = co_await http::async_read(stream_, buffer_, parser, kAwait);
  if (error) {
    if (error != beast::error::timeout) co_await refuse(status_of(error), error.message());
    co_return false;
  }
  stream_.expires_never();
  co_return true;
}

HttpRequest HttpSession::to_request(Parser& parser) const {
  auto message = parser.release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t mark = target.find('?');
  request.path = url_decode(target.substr(0, mark));
  if (mark != std::string::npos) request.query = parse_query(target.substr(mark + 1));
  for (const auto& field : message) {
    request.headers[lower(std::string(field.name_string()))] = std::string(field.value());
  }
  request.body = std::move(message.body());
  return request;
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
  bool finished = false;
  while (!finished && !gone_) {
    if (parts_.empty()) {
      wake_.expires_at(net::steady_timer::time_point::max());
      co_await wake_.async_wait(kAwait);
      continue;
    }
    const Part part = std::move(parts_.front());
    parts_.pop_front();
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
  } else if (part.kind == Part::Kind::kChunk) {
    std::tie(error, std::ignore) =
        co_await net::async_write(stream_, http::make_chunk(net::buffer(part.body)), kAwait);
  } else {
    std::tie(error, std::ignore) =
        co_await net::async_write(stream_, http::make_chunk_last(), kAwait);
  }
  co_return !error;
}

net::awaitable<void> HttpSession::refuse(int status, std::string message) {
  keep_alive_ = false;
  stream_.expires_after(shared_->options.write_timeout);
  Part part{Part::Kind::kReply,
            status,
            "application/json",
            shared_->options.error_body(status, message),
            {}};
  if (!co_await write_part(part)) co_return;
  // What the client still sends is read and thrown away for a while: closing a socket with unread
  // bytes would take the answer with it.
  beast::error_code gone;
  stream_.socket().shutdown(net::ip::tcp::socket::shutdown_send, gone);
  stream_.expires_after(kLingerTime);
  std::array<char, 16384> waste;
  for (size_t total = 0; total < kLingerBytes;) {
    const auto [error, bytes] = co_await stream_.async_read_some(net::buffer(waste), kAwait);
    if (error) co_return;
    total += bytes;
  }
}

}  // namespace refrain
