#include "tests/unit/server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr timeval kPatience{20, 0};  // a read that waits longer fails its test

// Again when it was interrupted, as a call with a time limit is when the process was stopped.
template <class Call>
ssize_t uninterrupted(Call call) {
  ssize_t result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

ServerFixture::ServerFixture(HttpOptions options, HttpHandler handler) {
  options.port = 0;
  if (!options.error_body) {
    options.error_body = [](int status, const std::string& message) {
      return fmt::format("error {}: {}", status, message);
    };
  }
  auto server = HttpServer::listen({&io_}, std::move(options), std::move(handler));
  REFRAIN_CHECK(server.has_value(), "{}", server ? "" : server.error().message);
  server_ = std::move(*server);
  thread_ = std::thread([this] { io_.run(); });
}

ServerFixture::~ServerFixture() {
  io_.stop();
  thread_.join();
}

RawClient::RawClient(int port, int receive_buffer)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  REFRAIN_CHECK(socket_ >= 0, "no socket");
  if (receive_buffer > 0) {
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected =
      ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  REFRAIN_CHECK(connected == 0, "no connection to port {}", port);
}

RawClient::~RawClient() { close(); }

void RawClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool RawClient::send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t now = uninterrupted(
        [&] { return ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL); });
    if (now <= 0) return false;
    sent += static_cast<size_t>(now);
  }
  return true;
}

bool RawClient::receive() {
  char bytes[4096];
  const ssize_t got = uninterrupted([&] { return ::recv(socket_, bytes, sizeof bytes, 0); });
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::string RawClient::read_until(const std::string& mark) {
  size_t at = std::string::npos, looked = 0;  // bytes in which the mark does not begin
  while ((at = buffer_.find(mark, looked)) == std::string::npos) {
    looked = buffer_.size() - std::min(buffer_.size(), mark.size() - 1);
    if (!receive()) break;
  }
  const size_t end = at == std::string::npos ? buffer_.size() : at + mark.size();
  std::string text = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return text;
}

std::string RawClient::read_all() {
  while (receive()) {
  }
  return std::move(buffer_);
}

std::string get(const std::string& path, const std::string& headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n{}\r\n", path, headers);
}

std::string post(const std::string& path, const std::string& body, const std::string& headers) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n{}\r\n{}", path,
                     body.size(), headers, body);
}

}  // namespace refrain
