#pragma once
// A connection as a stream of bytes, in the clear or inside TLS, of a server or a client, which
// read and write it without knowing which. On its thread. Asio's templates for both are made in the
// .cpp: they are what compiling costs.

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <span>
#include <string>
#include <tuple>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace refrain {

using TlsContext = boost::asio::ssl::context;

// What is awaited gives a tuple with the error in front, and throws nothing.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

// TLS 1.2 or later with this certificate chain and key (PEM); errors name the option at fault.
Result<std::shared_ptr<TlsContext>> make_tls_context(const std::string& certificate_file,
                                                     const std::string& key_file);

// For a client that trusts the certificates that this machine does, of that host.
std::shared_ptr<TlsContext> make_client_tls_context(const std::string& host);

class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  using Error = boost::system::error_code;

  // Without a TLS context in the clear. The socket is connected, or connect() comes next.
  HttpStream(boost::asio::ip::tcp::socket socket, std::shared_ptr<TlsContext> tls);
  HttpStream(const HttpStream&) = delete;  // TLS refers to the socket
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  void expires_after(Duration limit) { tcp_.expires_after(limit); }
  void expires_never() { tcp_.expires_never(); }
  void close() { tcp_.close(); }
  bool has_tls() const { return inside_ != nullptr; }

  // To the first of these that answers.
  boost::asio::awaitable<Error> connect(
      const boost::asio::ip::tcp::resolver::results_type& addresses);
  // The server's. Nothing to do without TLS. False: the peer speaks no TLS, or not in time.
  boost::asio::awaitable<bool> handshake(Duration limit);
  // The client's, with that host. Nothing to do without TLS.
  boost::asio::awaitable<Error> handshake_with(const std::string& host);
  // Tells the peer that no more comes, and stops sending.
  boost::asio::awaitable<void> end(Duration limit);

  // The error, and how many bytes went.
  using IoResult = std::tuple<Error, size_t>;
  boost::asio::awaitable<IoResult> read_some(boost::asio::mutable_buffer into);
  boost::asio::awaitable<IoResult> write_some(std::span<const boost::asio::const_buffer> from);
  boost::asio::awaitable<IoResult> read_under_tls(boost::asio::mutable_buffer into);

 private:
  std::shared_ptr<TlsContext> tls_;
  boost::beast::tcp_stream tcp_;
  // Only with TLS: a plain connection does not pay for its buffers.
  std::unique_ptr<boost::asio::ssl::stream<boost::beast::tcp_stream&>> inside_;
};

}  // namespace refrain
