#include "runtime/load/load_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <future>

#include "runtime/actor/io_threads.h"
#include "runtime/base/log.h"
#include "runtime/load/event_reader.h"
#include "runtime/net/http_stream.h"

namespace refrain {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCodeOf = beast::error_code;
using tcp = asio::ip::tcp;

using Sink = std::function<void(std::string_view)>;

// A body that is handed on as it arrives.
struct SinkBody {
  using value_type = Sink;

  class reader {  // NOLINT(readability-identifier-naming): Beast asks for the name
   public:
    template <bool IsRequest, class Fields>
    reader(http::header<IsRequest, Fields>&, value_type& sink) : sink_(sink) {}
    void init(const boost::optional<uint64_t>&, ErrorCodeOf& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, ErrorCodeOf& error) {
      error = {};
      size_t taken = 0;
      for (auto at = asio::buffer_sequence_begin(buffers); at != asio::buffer_sequence_end(buffers);
           ++at) {
        const asio::const_buffer part(*at);
        sink_({static_cast<const char*>(part.data()), part.size()});
        taken += part.size();
      }
      return taken;
    }
    void finish(ErrorCodeOf& error) { error = {}; }

   private:
    value_type& sink_;
  };
};

using Parser = http::response_parser<SinkBody>;

struct Connection {
  Connection(tcp::socket socket, std::shared_ptr<TlsContext> tls)
      : stream(std::move(socket), std::move(tls)) {}

  HttpStream stream;
  beast::flat_buffer buffer;
  bool used = false;
};

constexpr size_t kReadBytes = size_t{64} << 10;

// In place of Beast's own operations on streams, whose templates are slow to compile.
asio::awaitable<ErrorCodeOf> exchange(Connection& connection, std::string_view message,
                                      Parser& parser) {
  while (!message.empty()) {
    const asio::const_buffer rest = asio::buffer(message);
    const auto [error, bytes] = co_await connection.stream.write_some({&rest, 1});
    if (error) co_return error;
    message.remove_prefix(bytes);
  }
  beast::flat_buffer& buffer = connection.buffer;
  while (!parser.is_done()) {
    ErrorCodeOf error = http::error::need_more;
    if (buffer.size() > 0) buffer.consume(parser.put(buffer.data(), error));
    if (!error) continue;
    if (error != http::error::need_more) co_return error;
    const auto [unread, bytes] = co_await connection.stream.read_some(buffer.prepare(kReadBytes));
    if (unread == asio::error::eof) {
      if (!parser.got_some()) co_return http::error::end_of_stream;
      error = {};
      parser.put_eof(error);
      co_return error;
    }
    if (unread) co_return unread;
    buffer.commit(bytes);
  }
  co_return ErrorCodeOf{};
}

std::string why(const ErrorCodeOf& error) {
  if (error == beast::error::timeout) return "the answer was not whole in time (--request-timeout)";
  if (error == http::error::end_of_stream || error == http::error::partial_message) {
    return "the server closed the connection before the answer's end";
  }
  return error.message();
}

}  // namespace

struct LoadClient::Shared {
  Options options;
  tcp::resolver::results_type addresses;
  std::shared_ptr<TlsContext> tls;  // null: in the clear
};

// One thread's connections. Everything of it runs there.
class LoadClient::Thread {
 public:
  explicit Thread(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    threads_.start([] {
      log::critical("a thread of the load generator failed");
      std::_Exit(kExitInternal);
    });
  }
  ~Thread() {
    threads_.join();
    idle_.clear();  // before their context
  }

  asio::io_context& io() { return threads_.context(0).native(); }

  struct Exchange {
    std::string message;
    Sink sink;          // of a 200's body
    std::string other;  // the body of any other answer
    int status = 0;
    std::string error;
  };

  asio::awaitable<void> run(Exchange& work) {
    bool again = true;
    while (again) {
      std::unique_ptr<Connection> connection = co_await connected(work);
      if (!connection) co_return;
      const bool used = std::exchange(connection->used, true);
      Parser parser;
      parser.body_limit(boost::none);
      parser.get().body() = [&](std::string_view bytes) {
        if (parser.get().result() == http::status::ok) {
          work.sink(bytes);
        } else {
          work.other += bytes;
        }
      };
      const ErrorCodeOf error = co_await exchange(*connection, work.message, parser);
      // A server may close a connection that waits just when it is used again.
      again = used && error && error != beast::error::timeout && !parser.is_header_done();
      if (again) continue;
      if (error) work.error = why(error);
      work.status = parser.is_header_done() ? parser.get().result_int() : 0;
      if (!error && parser.keep_alive()) {
        connection->stream.expires_never();
        idle_.push_back(std::move(connection));
      }
    }
  }

 private:
  asio::awaitable<std::unique_ptr<Connection>> connected(Exchange& work) {
    std::unique_ptr<Connection> connection;
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
      connection->stream.expires_after(shared_->options.timeout);
      co_return connection;
    }
    connection = std::make_unique<Connection>(tcp::socket(io()), shared_->tls);
    HttpStream& stream = connection->stream;
    stream.expires_after(shared_->options.timeout);
    if (const ErrorCodeOf refused = co_await stream.connect(shared_->addresses)) {
      work.error = fmt::format("no connection: {}", refused.message());
      co_return nullptr;
    }
    if (const ErrorCodeOf untrusted = co_await stream.handshake_with(shared_->options.url.host)) {
      work.error = fmt::format("no TLS connection: {}", untrusted.message());
      co_return nullptr;
    }
    co_return connection;
  }

  const std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Connection>> idle_;
  IoThreads threads_{1, "load"};
};

namespace {

// `headers`: further ones, each with its end of line.
std::string message_to(const LoadClient::Options& options, std::string_view verb,
                       const std::string& route, std::string_view headers, std::string_view body) {
  const std::string key =
      options.api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", options.api_key);
  return fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: refrain-bench\r\n{}{}\r\n{}",
                     verb, options.url.path, route, options.url.host, options.url.port, key,
                     headers, body);
}

// The times of one answer, and what its events say at the end.
struct Timer {
  explicit Timer(TimePoint due, TimePoint begin) : due(due) {
    record.start = seconds_between(begin, due);
  }

  void on_tokens() {
    const double now = seconds_between(due, std::chrono::steady_clock::now());
    if (record.ttft == 0) {
      record.ttft = now;
    } else {
      record.itl.push_back(static_cast<float>(now - record.end));
    }
    record.end = now;
  }

  TimePoint due;
  LoadRecord record;
};

std::string fault_of(int status, const std::string& error, const std::string& other,
                     const EventReader& events, const LoadRecord& record) {
  if (!error.empty()) return error;
  if (status != 200) return fmt::format("HTTP {}: {}", status, error_text(other));
  if (!events.error().empty()) return events.error();
  if (!events.done()) return "the stream ended without [DONE]";
  if (record.ttft == 0) return "no token came";
  return {};
}

}  // namespace

Result<BaseUrl> parse_base_url(const std::string& text) {
  BaseUrl url;
  std::string rest = text;
  if (rest.starts_with("https://")) {
    url.tls = true;
    rest.erase(0, 8);
  } else if (rest.starts_with("http://")) {
    rest.erase(0, 7);
  } else {
    return fail_field("--base-url", "--base-url must begin with http:// or https://, not: {}",
                      text);
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  rest.resize(slash);
  const size_t colon = rest.find(':', rest.find(']') == std::string::npos ? 0 : rest.find(']'));
  url.host = rest.substr(0, colon);
  url.port = url.tls ? "443" : "80";
  if (colon != std::string::npos) url.port = rest.substr(colon + 1);
  if (url.host.starts_with('[') && url.host.ends_with(']')) {
    url.host = url.host.substr(1, url.host.size() - 2);
  }
  const bool digits = !url.port.empty() && url.port.size() <= 5 &&
                      url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || !digits) {
    return fail_field("--base-url", "--base-url {} is no http[s]://HOST[:PORT][/PATH]", text);
  }
  return url;
}

LoadClient::LoadClient(Options options) : shared_(std::make_shared<Shared>()) {
  shared_->options = std::move(options);
}

LoadClient::~LoadClient() = default;

Result<std::unique_ptr<LoadClient>> LoadClient::create(Options options) {
  std::unique_ptr<LoadClient> client(new LoadClient(std::move(options)));
  Shared& shared = *client->shared_;
  const BaseUrl& url = shared.options.url;
  asio::io_context io;
  ErrorCodeOf error;
  shared.addresses = tcp::resolver(io).resolve(url.host, url.port, error);
  if (error)
    return fail_field("--base-url", "the host {} is not known: {}", url.host, error.message());
  if (url.tls) shared.tls = make_client_tls_context(url.host);
  for (int i = 0; i < shared.options.threads; ++i) {
    client->threads_.push_back(std::make_unique<Thread>(client->shared_));
  }
  return client;
}

Result<HttpAnswer> LoadClient::get(const std::string& route) {
  Thread& thread = *threads_.front();
  Thread::Exchange work;
  HttpAnswer answer;
  work.message = message_to(shared_->options, "GET", route, "", "");
  work.sink = [&](std::string_view bytes) { answer.body += bytes; };
  asio::co_spawn(thread.io(), thread.run(work), asio::use_future).get();
  if (!work.error.empty()) {
    return fail(ErrorCode::kUnavailable, "{}{}: {}", shared_->options.url.host, route, work.error);
  }
  answer.status = work.status;
  if (answer.status != 200) answer.body = std::move(work.other);
  return answer;
}

void LoadClient::start(Request request, TimePoint begin, std::function<void(LoadRecord)> done) {
  Thread& thread = *threads_[next_++ % threads_.size()];
  auto exchange = [](Thread& thread, std::shared_ptr<Shared> shared, Request request,
                     TimePoint begin,
                     std::function<void(LoadRecord)> done) -> asio::awaitable<void> {
    Timer timer(request.due, begin);
    EventReader events([&timer] { timer.on_tokens(); });
    Thread::Exchange work;
    const std::string body = request.body();
    const std::string of_body =
        fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    work.message = message_to(shared->options, "POST", request.route, of_body, body);
    work.sink = [&events](std::string_view bytes) { events.feed(bytes); };
    co_await thread.run(work);
    LoadRecord record = std::move(timer.record);
    record.error = fault_of(work.status, work.error, work.other, events, record);
    record.input_tokens = events.input_tokens();
    record.output_tokens = events.output_tokens();
    done(std::move(record));
  };
  asio::co_spawn(thread.io(), exchange(thread, shared_, std::move(request), begin, std::move(done)),
                 [](const std::exception_ptr& failure) {
                   if (failure) std::rethrow_exception(failure);
                 });
}

}  // namespace refrain
