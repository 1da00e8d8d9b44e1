#pragma once
// Addresses of endpoints: what may be bound, the ipc:// directory and file that a server
// takes and gives back. Blocking file calls, at start and end only; one thread.

#include <string>

#include "ipc/transport/endpoint.h"
#include "runtime/base/result.h"

namespace refrain::ipc {

struct Address {
  enum class Scheme : uint8_t { kIpc, kTcp };
  Scheme scheme = Scheme::kIpc;
  std::string text;  // as ZeroMQ takes it
  std::string path;  // ipc: of the socket file
  std::string host;  // tcp
  std::string port;  // tcp; "*" or "0" on a server: any free one

  bool is_wildcard() const;  // tcp on every interface
  bool is_loopback() const;
};

Result<Address> parse_address(const std::string& text);

// tcp://HOST:PORT on which this machine takes connections of the other ranks of its group, as a
// worker is told: HOST or HOST:PORT; port * for any free one.
Result<std::string> listen_address(const std::string& host);
// On the interface from which a tcp:// address is reached. Looks the host's name up, which may be
// known later (kUnavailable).
Result<std::string> listen_address_towards(const std::string& address);

// Of a worker: the first where it is told --local-addr, else the second towards a coordinator at
// tcp://; empty: neither.
Result<std::string> listen_address_of(const std::string& local_addr,
                                      const std::string& coordinator);
// Where a worker answers ranks of other groups: the port after that of --local-addr, else any free
// one on the interface towards a coordinator at tcp://, else one of this machine alone.
Result<std::string> transfer_address_of(const std::string& local_addr,
                                        const std::string& coordinator);

// The socket file of a server. Taking it makes the directory (mode 0700) if it is missing and
// clears away the file of a dead process; giving it back removes the file and a directory made
// here.
class IpcFile {
 public:
  IpcFile() = default;
  IpcFile(IpcFile&& other) noexcept;
  IpcFile& operator=(IpcFile&&) = delete;
  ~IpcFile() { give_back(); }

  static Result<IpcFile> take(const std::string& path);
  void give_back();

 private:
  std::string path_;
  std::string made_directory_;
};

// A client's look at the directory, if it is there already: it must be our user's alone.
Status check_ipc_directory(const std::string& path);

}  // namespace refrain::ipc
