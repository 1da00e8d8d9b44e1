// Where a rank listens for the other ranks of its group.

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "ipc/transport/address.h"
#include "runtime/base/unique_handle.h"

namespace refrain::ipc {

Result<std::string> listen_address(const std::string& host) {
  const size_t colon = host.rfind(':');
  const bool has_port =
      colon != std::string::npos && (host.front() != '[' || host[colon - 1] == ']');
  const std::string text = "tcp://" + host + (has_port ? "" : ":*");
  const auto address = parse_address(text);
  if (!address || address->is_wildcard())
    return fail_field("local-addr",
                      "\"{}\" is not HOST or HOST:PORT of one interface of this machine", host);
  return text;
}

// Of a datagram socket that is connected, nothing is sent.
Result<std::string> listen_address_towards(const std::string& address) {
  REFRAIN_ASSIGN_OR_RETURN(const Address to, parse_address(address));
  std::string host = to.host;
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const auto failed = [&](const char* why) {
    return fail(ErrorCode::kUnavailable,
                "the address of this machine towards {} is not known ({}); give --local-addr",
                address, why);
  };
  if (const int code = getaddrinfo(host.c_str(), to.port.c_str(), &hints, &found); code != 0)
    return failed(gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  const UniqueFd socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (!socket || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0)
    return failed(std::strerror(errno));
  char text[NI_MAXHOST];
  const int code = getnameinfo(reinterpret_cast<const sockaddr*>(&own), bytes, text, sizeof text,
                               nullptr, 0, NI_NUMERICHOST);
  if (code != 0) return failed(gai_strerror(code));
  return found->ai_family == AF_INET6 ? fmt::format("tcp://[{}]:*", text)
                                      : fmt::format("tcp://{}:*", text);
}

Result<std::string> listen_address_of(const std::string& local_addr,
                                      const std::string& coordinator) {
  if (!local_addr.empty()) return listen_address(local_addr);
  if (coordinator.starts_with("tcp://")) return listen_address_towards(coordinator);
  return "";
}

Result<std::string> transfer_address_of(const std::string& local_addr,
                                        const std::string& coordinator) {
  REFRAIN_ASSIGN_OR_RETURN(std::string own, listen_address_of(local_addr, coordinator));
  if (own.empty()) return "tcp://127.0.0.1:*";
  REFRAIN_ASSIGN_OR_RETURN(const Address address, parse_address(own));
  if (address.port == "*" || address.port == "0") return own;
  return fmt::format("tcp://{}:{}", address.host, std::stoi(address.port) + 1);
}

}  // namespace refrain::ipc
