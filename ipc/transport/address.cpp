#include "ipc/transport/address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/base/unique_handle.h"

namespace refrain::ipc {
namespace {

constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;

std::string directory_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

Status check_owned_directory(const std::string& directory, const struct stat& info) {
  if (!S_ISDIR(info.st_mode))
    return fail_field("address", "{} is not a directory; sockets need one of their own", directory);
  if (info.st_uid != ::geteuid())
    return fail_field("address", "directory {} belongs to user {}; sockets need one of user {}",
                      directory, info.st_uid, ::geteuid());
  if ((info.st_mode & 077) != 0)
    return fail_field("address",
                      "directory {} is open to other users (mode {:04o}); set it to 0700 or name "
                      "another one",
                      directory, info.st_mode & 07777);
  return {};
}

// Makes the directory unless it is there; true when it was made.
Result<bool> ensure_directory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) == 0) return true;
  if (errno != EEXIST)
    return fail_field("address", "directory {} cannot be made: {}", directory,
                      std::strerror(errno));
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0)
    return fail_field("address", "directory {}: {}", directory, std::strerror(errno));
  REFRAIN_RETURN_IF_ERROR(check_owned_directory(directory, info));
  return false;
}

// Whether a process listens on the socket file: only then does it accept a connection.
Result<bool> is_live(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket)
    return fail(ErrorCode::kInternal, "no socket to probe {}: {}", path, std::strerror(errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return true;
  if (errno == ECONNREFUSED || errno == ENOENT) return false;
  if (errno == EAGAIN) return true;  // its backlog is full
  return fail_field("address", "ipc://{} cannot be probed: {}", path, std::strerror(errno));
}

Status clear_stale(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return fail_field("address", "{}: {}", path, std::strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode))
    return fail_field("address", "{} exists and is not a socket; name another path", path);
  bool live = false;
  REFRAIN_ASSIGN_OR_RETURN(live, is_live(path));
  if (live) return fail_field("address", "ipc://{} is in use by another process", path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return fail_field("address", "stale socket {} cannot be removed: {}", path,
                      std::strerror(errno));
  return {};
}

Result<Address> parse_ipc(Address address, const std::string& rest) {
  address.scheme = Address::Scheme::kIpc;
  address.path = rest;
  if (rest.size() < 2 || rest.front() != '/' || rest.back() == '/')
    return fail_field("address", "{}: ipc:// needs an absolute path, as ipc:///run/user/me/socket",
                      address.text);
  if (rest.size() > kMaxPath)
    return fail_field("address", "{}: the path has {} characters; a socket's has at most {}",
                      address.text, rest.size(), kMaxPath);
  return address;
}

Result<Address> parse_tcp(Address address, const std::string& rest) {
  address.scheme = Address::Scheme::kTcp;
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == rest.size())
    return fail_field("address", "{}: tcp:// needs a host and a port, as tcp://10.0.0.1:5555",
                      address.text);
  address.host = rest.substr(0, colon);
  address.port = rest.substr(colon + 1);
  const bool any_port = address.port == "*";
  const bool digits = address.port.find_first_not_of("0123456789") == std::string::npos;
  if (!any_port && (!digits || address.port.size() > 5 || std::stoi(address.port) > 65535))
    return fail_field("address", "{}: {} is not a port (0 to 65535)", address.text, address.port);
  if (address.port == "0") {
    address.port = "*";
    address.text = "tcp://" + address.host + ":*";
  }
  return address;
}

}  // namespace

bool Address::is_wildcard() const {
  return scheme == Scheme::kTcp &&
         (host == "*" || host == "0.0.0.0" || host == "[::]" || host == "::" || host == "0");
}

bool Address::is_loopback() const {
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

Result<Address> parse_address(const std::string& text) {
  Address address;
  address.text = text;
  if (text.find('\0') != std::string::npos)
    return fail_field("address", "an address must not hold a zero character");
  if (text.starts_with("ipc://")) return parse_ipc(std::move(address), text.substr(6));
  if (text.starts_with("tcp://")) return parse_tcp(std::move(address), text.substr(6));
  return fail_field("address", "address \"{}\" must begin with ipc:// or tcp://", text);
}

IpcFile::IpcFile(IpcFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      made_directory_(std::exchange(other.made_directory_, {})) {}

Result<IpcFile> IpcFile::take(const std::string& path) {
  const std::string directory = directory_of(path);
  bool made = false;
  REFRAIN_ASSIGN_OR_RETURN(made, ensure_directory(directory));
  IpcFile file;
  if (made) file.made_directory_ = directory;
  REFRAIN_RETURN_IF_ERROR(clear_stale(path));
  file.path_ = path;
  return file;
}

// Failures are left alone: the file may be gone already and the directory in use by others.
void IpcFile::give_back() {
  if (!path_.empty()) ::unlink(path_.c_str());
  if (!made_directory_.empty()) ::rmdir(made_directory_.c_str());
  path_.clear();
  made_directory_.clear();
}

Status check_ipc_directory(const std::string& path) {
  const std::string directory = directory_of(path);
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};  // the server has not started yet
    return fail_field("address", "directory {}: {}", directory, std::strerror(errno));
  }
  return check_owned_directory(directory, info);
}

}  // namespace refrain::ipc
