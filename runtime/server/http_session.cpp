#include "runtime/server/http_session.h"

#include <poll.h>

#include <array>
#include <boost/asio/post.hpp>
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

// All but the body.
HttpRequest describe(const http::request<ArrivingBody>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  UrlTarget target = parse_target(std::string(message.target()));
  request.path = std::move(target.path);
  request.query = std::move(target.query);
  for (const auto& field : message) {
    request.headers[lower(std::string(field.name_string()))] = std::string(field.value());
  }
  return request;
}

}  // namespace

// Brings every part to the session's thread: at once when called on it, posted otherwise and
// whenever a part that was posted before has not come. Keeps the session alive while an answer is
// owed.
class HttpSession::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<HttpSession> session, uint64_t number)
      : session_(std::move(session)), number_(number) {}

  using HttpExchange::reply;
  void reply(HttpReply reply) override { push(Part::kReply, std::move(reply)); }
  void begin_stream(int status, std::string content_type, HttpHeaders headers) override {
    push(Part::kHead, {status, std::move(content_type), {}, std::move(headers)});
  }
  void write(std::string chunk) override {
    if (!chunk.empty()) push(Part::kChunk, {0, {}, std::move(chunk), {}});
  }
  void end_stream() override { push(Part::kEnd, {}); }
  size_t io_thread() const override { return session_->thread_; }
  void on_idle(Duration after, std::function<void()> handler) override {
    net::post(session_->executor(), [session = session_, number = number_, after,
                                     handler = std::move(handler)]() mutable {
      if (number != session->exchange_ || session->ended_ || session->gone_) return;
      session->idle_after_ = after;
      session->on_idle_ = std::move(handler);
      session->wake_.cancel();  // answer() looks again how long it may wait
    });
  }
  void on_disconnect(std::function<void()> handler) override {
    net::post(session_->executor(),
              [session = session_, number = number_, handler = std::move(handler)]() mutable {
                if (number != session->exchange_ || session->ended_) return;
                if (session->gone_) return handler();
                session->on_disconnect_ = std::move(handler);
              });
  }

 private:
  void push(Part part, HttpReply content) {
    if (*posted_ == 0 && session_->io_.get_executor().running_in_this_thread()) {
      return session_->push(number_, part, std::move(content));
    }
    ++*posted_;
    net::post(session_->io_, [session = session_, number = number_, posted = posted_, part,
                              content = std::move(content)]() mutable {
      --*posted;
      session->push(number, part, std::move(content));
    });
  }
  std::shared_ptr<HttpSession> session_;
  uint64_t number_;
  std::shared_ptr<std::atomic<int>> posted_ = std::make_shared<std::atomic<int>>(0);
};

HttpSession::HttpSession(net::ip::tcp::socket socket, std::shared_ptr<HttpShared> shared,
                         net::io_context& io, size_t thread)
    : io_(io),
      stream_(std::move(socket), shared->tls),
      feed_(stream_, shared->options.max_header_bytes + HttpFeed::kBodyBytes),
      wake_(stream_.get_executor()),
      watch_again_(stream_.get_executor()),
      shared_(std::move(shared)),
      thread_(thread) {
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
  for (bool first = true; form_.keep_alive && !shared_->stopping; first = false) {
    HttpParser parser;
    parser.header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
    parser.body_limit(shared_->options.max_body_bytes);
    HttpRequest request;
    headers_.clear();
    form_ = {};  // of a refusal before the head is known
    if (!co_await read_request(parser, request, first)) break;
    request.body = std::move(parser.get().body());
    ++exchange_;
    ended_ = false;
    largest_chunk_ = 0;
    last_part_ = steady_clock().now();
    const Answering answering(shared_->answering);
    auto exchange = std::make_shared<Exchange>(self, exchange_);
    try {
      shared_->handler(std::move(request), exchange);
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

net::awaitable<bool> HttpSession::read_header(HttpParser& parser, bool first) {
  if (feed_.empty()) {
    stream_.expires_after(first ? shared_->options.header_timeout : shared_->options.idle_timeout);
    if (co_await feed_.read(HttpFeed::kHeadBytes)) co_return false;
  }
  // The first request's time runs from the connection's begin.
  if (!first) stream_.expires_after(shared_->options.header_timeout);
  beast::error_code error;
  while (!error && !parser.is_header_done()) error = co_await feed_.parse_some(parser);
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

bool HttpSession::too_many_fields(const HttpParser& parser) const {
  const auto fields = std::distance(parser.get().begin(), parser.get().end());
  return static_cast<size_t>(fields) > shared_->options.max_header_fields;
}

// Everything that a body can be refused for before it is read.
net::awaitable<bool> HttpSession::may_send_body(const HttpParser& parser, const HttpRequest& head) {
  if (shared_->options.check_head) {
    if (auto refusal = shared_->options.check_head(head)) {
      co_await refuse(std::move(*refusal));
      co_return false;
    }
  }
  if (!beast::iequals(parser.get()[http::field::expect], "100-continue")) co_return true;
  out_.proceed();
  const bool written = co_await write_out();
  co_return written;
}

net::awaitable<bool> HttpSession::read_request(HttpParser& parser, HttpRequest& request,
                                               bool first) {
  if (!co_await read_header(parser, first)) co_return false;
  form_ = {parser.get().version(), parser.get().keep_alive(),
           parser.get().method() == http::verb::head};
  request = describe(parser.get());
  if (shared_->options.answer_headers) headers_ = shared_->options.answer_headers(request);
  stream_.expires_after(shared_->options.body_timeout);
  if (!parser.is_done() && !co_await may_send_body(parser, request)) co_return false;
  const auto& owner_of = shared_->options.owner_of;
  auto charge =
      std::make_shared<BodyCharge>(shared_->body_bytes, owner_of ? owner_of(request) : "");
  request.body_charge = charge;
  while (!parser.is_done()) {
    if (const auto error = co_await feed_.parse_some(parser)) {
      if (error != beast::error::timeout) co_await refuse(status_of(error), error.message());
      co_return false;
    }
    if (!charge->grow_to(parser.get().body().size())) {
      parser.get().body() = {};
      request.body_charge = charge = nullptr;
      HttpHeaders headers = {{"Retry-After", "1"}};
      co_await refuse(503, "too many large requests at once", std::move(headers));
      co_return false;
    }
    if (too_many_fields(parser)) {  // with those behind a chunked body
      co_await refuse(400, "too many trailer fields");
      co_return false;
    }
  }
  feed_.release();
  stream_.expires_never();
  co_return true;
}

// Called from within the exchange's callers, so nobody is called back from here.
void HttpSession::push(uint64_t exchange, Part part, HttpReply content) {
  if (exchange != exchange_ || ended_ || gone_) return;
  ended_ = part == Part::kReply || part == Part::kEnd;
  last_part_ = steady_clock().now();
  form_.keep_alive = form_.keep_alive && !shared_->stopping;
  switch (part) {
    case Part::kReply:
      content.headers.insert(content.headers.end(), headers_.begin(), headers_.end());
      out_.reply(form_, std::move(content));
      break;
    case Part::kHead:
      // For old clients the end of the connection is the end of the answer.
      if (form_.version < 11) form_.keep_alive = false;
      content.headers.insert(content.headers.end(), headers_.begin(), headers_.end());
      out_.head(form_, content);
      break;
    case Part::kChunk:
      largest_chunk_ = std::max(largest_chunk_, content.body.size());
      out_.chunk(form_, content.body);
      break;
    case Part::kEnd:
      out_.end(form_);
      break;
  }
  flush_soon();
}

// Behind what runs now, which may bring more parts: they leave in one write.
void HttpSession::flush_soon() {
  if (std::exchange(flush_soon_, true)) return;
  net::post(io_, [self = shared_from_this()] {
    self->flush_soon_ = false;
    self->flush();
  });
}

// What the socket takes at once goes without waking answer(), which is there for the rest.
void HttpSession::flush() {
  if (gone_) return;
  if (!writing_ && !stream_.has_tls() && !out_.write_now(stream_.socket().native_handle()))
    return client_left();
  if (!ended_ && out_.bytes() > shared_->options.max_buffered_bytes + largest_chunk_) {
    log::warn("a client reads too slowly; {} bytes wait for it, cut off", out_.bytes());
    client_left();
    return stream_.close();
  }
  if (ended_ || !out_.empty()) wake_.cancel();
}

void HttpSession::client_left() {
  if (gone_) return;
  gone_ = true;
  if (!writing_) out_.clear();
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
  const auto owes = [this] { return !gone_ && !(ended_ && out_.empty()); };
  while (owes()) {
    if (!out_.empty()) {
      const bool written = co_await write_out();
      if (!written) client_left();
      continue;
    }
    wake_.expires_at(on_idle_ ? last_part_ + idle_after_ : TimePoint::max());
    const auto [woken] = co_await wake_.async_wait(kAwait);
    if (woken || !on_idle_ || ended_ || gone_) continue;
    const TimePoint now = steady_clock().now();
    if (now < last_part_ + idle_after_) continue;
    last_part_ = now;
    on_idle_();
  }
  on_idle_ = nullptr;
  on_disconnect_ = nullptr;
  if (gone_) co_return false;
  stream_.expires_never();
  stream_.socket().cancel();  // the watch
  watch_again_.cancel();
  co_return form_.keep_alive;
}

// Until nothing waits; what is pushed meanwhile goes too.
net::awaitable<bool> HttpSession::write_out() {
  writing_ = true;
  bool good = true;
  while (good && !gone_ && !out_.empty()) {
    stream_.expires_after(shared_->options.write_timeout);
    const HttpOutbox::Buffers buffers = out_.begin_write();
    const auto [error, bytes] = co_await stream_.write_some(buffers);
    good = !error;
    out_.consume(bytes);
  }
  writing_ = false;
  if (gone_) out_.clear();
  co_return good;
}

net::awaitable<void> HttpSession::refuse(int status, std::string message, HttpHeaders headers) {
  HttpReply reply;
  reply.status = status;
  reply.body = shared_->options.error_body(status, message);
  reply.headers = std::move(headers);
  co_await refuse(std::move(reply));
}

net::awaitable<void> HttpSession::refuse(HttpReply reply) {
  form_.keep_alive = false;
  reply.headers.insert(reply.headers.end(), headers_.begin(), headers_.end());
  out_.reply(form_, std::move(reply));
  if (!co_await write_out()) co_return;
  // What the client still sends is read and thrown away for a while: closing a socket with unread
  // bytes would take the answer with it.
  beast::error_code gone;
  stream_.socket().shutdown(net::ip::tcp::socket::shutdown_send, gone);
  stream_.expires_after(kLingerTime);
  std::array<char, 16384> waste;
  for (size_t total = 0; total < kLingerBytes;) {
    const auto [error, bytes] = co_await stream_.read_under_tls(net::buffer(waste));
    if (error) co_return;
    total += bytes;
  }
}

}  // namespace refrain
