#include "runtime/net/http_stream.h"

#include <openssl/err.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <fstream>
#include <sstream>

namespace refrain {
namespace {

namespace net = boost::asio;
namespace ssl = boost::asio::ssl;

Result<std::string> read_pem(const char* option, const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail_field(option, "{} {} cannot be read", option, path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Result<std::shared_ptr<TlsContext>> make_tls_context(const std::string& certificate_file,
                                                     const std::string& key_file) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string certificate,
                           read_pem("--ssl-certfile", certificate_file));
  REFRAIN_ASSIGN_OR_RETURN(const std::string key, read_pem("--ssl-keyfile", key_file));
  auto context = std::make_shared<TlsContext>(TlsContext::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // idle connections keep no record buffers
  boost::system::error_code error;
  context->use_certificate_chain(net::buffer(certificate), error);
  if (error) {
    return fail_field("--ssl-certfile", "--ssl-certfile {}: {}", certificate_file, error.message());
  }
  // A key with a passphrase would otherwise be asked for at the terminal.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return ""; }, error);
  if (!error) context->use_private_key(net::buffer(key), ssl::context::pem, error);
  if (!error && SSL_CTX_check_private_key(native) != 1) {
    error = {static_cast<int>(::ERR_get_error()), net::error::get_ssl_category()};
  }
  if (error) {
    return fail_field("--ssl-keyfile",
                      "--ssl-keyfile {} is no key without passphrase of that certificate: {}",
                      key_file, error.message());
  }
  return context;
}

std::shared_ptr<TlsContext> make_client_tls_context(const std::string& host) {
  auto context = std::make_shared<TlsContext>(TlsContext::tls_client);
  context->set_default_verify_paths();
  context->set_verify_mode(ssl::verify_peer);
  context->set_verify_callback(ssl::host_name_verification(host));
  return context;
}

HttpStream::HttpStream(net::ip::tcp::socket socket, std::shared_ptr<TlsContext> tls)
    : tls_(std::move(tls)), tcp_(std::move(socket)) {
  if (tls_) inside_ = std::make_unique<ssl::stream<boost::beast::tcp_stream&>>(tcp_, *tls_);
}

net::awaitable<bool> HttpStream::handshake(Duration limit) {
  if (!inside_) co_return true;
  tcp_.expires_after(limit);
  const auto [error] = co_await inside_->async_handshake(ssl::stream_base::server, kAwait);
  co_return !error;
}

net::awaitable<HttpStream::Error> HttpStream::connect(
    const net::ip::tcp::resolver::results_type& addresses) {
  const auto [error, endpoint] = co_await tcp_.async_connect(addresses, kAwait);
  if (!error) tcp_.socket().set_option(net::ip::tcp::no_delay(true));
  co_return error;
}

net::awaitable<HttpStream::Error> HttpStream::handshake_with(const std::string& host) {
  if (!inside_) co_return Error{};
  SSL_set_tlsext_host_name(inside_->native_handle(), host.c_str());
  const auto [error] = co_await inside_->async_handshake(ssl::stream_base::client, kAwait);
  co_return error;
}

net::awaitable<HttpStream::IoResult> HttpStream::read_some(net::mutable_buffer into) {
  if (inside_) co_return co_await inside_->async_read_some(into, kAwait);
  co_return co_await tcp_.async_read_some(into, kAwait);
}

net::awaitable<HttpStream::IoResult> HttpStream::write_some(
    std::span<const net::const_buffer> from) {
  if (inside_) co_return co_await inside_->async_write_some(from, kAwait);
  co_return co_await tcp_.async_write_some(from, kAwait);
}

net::awaitable<HttpStream::IoResult> HttpStream::read_under_tls(net::mutable_buffer into) {
  co_return co_await tcp_.async_read_some(into, kAwait);
}

net::awaitable<void> HttpStream::end(Duration limit) {
  if (inside_ && tcp_.socket().is_open()) {
    tcp_.expires_after(limit);
    co_await inside_->async_shutdown(kAwait);  // a peer that does not answer is no failure
  }
  boost::system::error_code ignored;  // the peer may have closed first
  tcp_.socket().shutdown(net::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace refrain
