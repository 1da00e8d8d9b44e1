#pragma once
// One HTTP connection (private to runtime/server). Everything runs on the connection's thread; the
// exchange given to the handler brings it there.

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "runtime/net/http_stream.h"
#include "runtime/server/http_feed.h"
#include "runtime/server/http_outbox.h"
#include "runtime/server/http_server.h"

namespace refrain {

// What connections share with their server.
struct HttpShared {
  HttpOptions options;
  HttpHandler handler;
  std::shared_ptr<TlsContext> tls;  // null: plain HTTP
  std::atomic<int> connections{0};
  std::atomic<int> answering{0};
  std::atomic<bool> stopping{false};
  std::shared_ptr<BodyBytes> body_bytes;  // not parsed yet; a charge may outlive the server
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // `io`: the socket's context, which one thread runs; `thread`: its place among the server's.
  HttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpShared> shared,
              boost::asio::io_context& io, size_t thread);
  ~HttpSession();

  boost::asio::awaitable<void> run();
  void close();
  auto executor() { return stream_.get_executor(); }

 private:
  class Exchange;
  // A part of an answer, in order. Of a chunk only the body counts.
  enum class Part : uint8_t { kReply, kHead, kChunk, kEnd };

  boost::asio::awaitable<bool> read_request(HttpParser& parser, HttpRequest& request, bool first);
  boost::asio::awaitable<bool> read_header(HttpParser& parser, bool first);
  boost::asio::awaitable<bool> may_send_body(const HttpParser& parser, const HttpRequest& head);
  bool too_many_fields(const HttpParser& parser) const;
  boost::asio::awaitable<bool> answer();
  boost::asio::awaitable<bool> write_out();
  boost::asio::awaitable<void> refuse(int status, std::string message, HttpHeaders headers = {});
  boost::asio::awaitable<void> refuse(HttpReply reply);
  void watch_disconnect();
  void push(uint64_t exchange, Part part, HttpReply content);
  void flush_soon();
  void flush();
  void client_left();

  boost::asio::io_context& io_;
  HttpStream stream_;
  HttpFeed feed_;
  boost::asio::steady_timer wake_;
  boost::asio::steady_timer watch_again_;
  std::shared_ptr<HttpShared> shared_;
  const size_t thread_;
  HttpOutbox out_;
  bool writing_ = false;     // write_out() is at it
  bool flush_soon_ = false;  // flush() has been posted
  uint64_t exchange_ =
      0;                // number of the request being answered; late calls of old ones are dropped
  bool ended_ = false;  // the last part has been pushed
  bool gone_ = false;
  HttpAnswerForm form_;       // of the answer
  HttpHeaders headers_;       // that it carries whatever it is
  TimePoint last_part_;       // pushed, or on_idle_ called
  size_t largest_chunk_ = 0;  // of the answer, bytes: it may wait whole, however fast its reader
  Duration idle_after_{};
  std::function<void()> on_idle_;
  std::function<void()> on_disconnect_;
};

}  // namespace refrain
