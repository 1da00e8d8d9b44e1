#pragma once
// One HTTP connection (private to runtime/server). Everything runs on the connection's strand; the
// exchange given to the handler posts to it.

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>

#include "runtime/server/http_body.h"
#include "runtime/server/http_server.h"
#include "runtime/server/http_stream.h"

namespace refrain {

// What connections share with their server.
struct HttpShared {
  HttpOptions options;
  HttpHandler handler;
  std::shared_ptr<TlsContext> tls;  // null: plain HTTP
  std::atomic<int> connections{0};
  std::atomic<int> answering{0};
  std::atomic<bool> stopping{false};
  // Of the bodies that are here and not parsed yet; a charge may outlive the server.
  std::shared_ptr<std::atomic<size_t>> body_bytes = std::make_shared<std::atomic<size_t>>(0);
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpShared> shared);
  ~HttpSession();

  boost::asio::awaitable<void> run();
  void close();  // on the strand
  auto executor() { return stream_.get_executor(); }

 private:
  class Exchange;
  // A part of an answer, in order. Of a chunk only the body counts.
  struct Part : HttpReply {
    enum class Kind : uint8_t { kReply, kHead, kChunk, kEnd } kind;
    Part(Kind part_kind, HttpReply reply) : HttpReply(std::move(reply)), kind(part_kind) {}
  };
  using Parser = boost::beast::http::request_parser<ArrivingBody>;

  boost::asio::awaitable<bool> read_request(Parser& parser, BodyCharge& charge, bool first);
  boost::asio::awaitable<bool> read_header(Parser& parser, bool first);
  boost::asio::awaitable<bool> may_send_body(const Parser& parser);
  bool too_many_fields(const Parser& parser) const;
  boost::asio::awaitable<bool> answer();
  boost::asio::awaitable<bool> write_part(const Part& part);
  boost::asio::awaitable<void> refuse(int status, std::string message);
  boost::asio::awaitable<void> refuse(HttpReply reply);
  void watch_disconnect();
  void push(uint64_t exchange, Part part);
  void client_left();

  HttpStream stream_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer wake_;
  boost::asio::steady_timer watch_again_;
  std::shared_ptr<HttpShared> shared_;
  std::deque<Part> parts_;
  size_t buffered_bytes_ = 0;
  uint64_t exchange_ =
      0;                // number of the request being answered; late calls of old ones are dropped
  bool ended_ = false;  // the last part has been pushed
  bool gone_ = false;
  bool keep_alive_ = true;
  unsigned version_ = 11;
  bool head_only_ = false;
  std::function<void()> on_disconnect_;
};

}  // namespace refrain
