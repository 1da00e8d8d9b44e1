#pragma once
// One accepted connection as a stream of bytes, in the clear or inside TLS (private to
// runtime/server). The session reads and writes it without knowing which. On its strand.

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace refrain {

using TlsContext = boost::asio::ssl::context;

// What is awaited gives a tuple with the error in front, and throws nothing.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

// TLS 1.2 or later with this certificate chain and key (PEM); errors name the option at fault.
Result<std::shared_ptr<TlsContext>> make_tls_context(const std::string& certificate_file,
                                                     const std::string& key_file);

class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  HttpStream(boost::asio::ip::tcp::socket socket, std::shared_ptr<TlsContext> tls);

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }  // under the TLS
  void expires_after(Duration limit) { tcp_.expires_after(limit); }
  void expires_never() { tcp_.expires_never(); }
  void close() { tcp_.close(); }
  bool has_tls() const { return inside_ != nullptr; }

  // Nothing to do without TLS. False: the peer speaks no TLS, or not in time.
  boost::asio::awaitable<bool> handshake(Duration limit);
  // Tells the peer that no more comes, and stops sending.
  boost::asio::awaitable<void> end(Duration limit);

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return initiate([](auto& stream, const auto& into,
                       auto handler) { stream.async_read_some(into, std::move(handler)); },
                    buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return initiate([](auto& stream, const auto& from,
                       auto handler) { stream.async_write_some(from, std::move(handler)); },
                    buffers, std::forward<Token>(token));
  }

 private:
  template <class Operation, class Buffers, class Token>
  auto initiate(Operation operation, const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::beast::error_code, size_t)>(
        [this, operation](auto handler, const Buffers& bytes) {
          if (inside_) {
            operation(*inside_, bytes, std::move(handler));
          } else {
            operation(tcp_, bytes, std::move(handler));
          }
        },
        token, buffers);
  }

  std::shared_ptr<TlsContext> tls_;
  boost::beast::tcp_stream tcp_;
  // Only with TLS: a plain connection does not pay for its buffers.
  std::unique_ptr<boost::asio::ssl::stream<boost::beast::tcp_stream&>> inside_;
};

}  // namespace refrain
