#include "ipc/transport/curve.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "runtime/base/unique_handle.h"

namespace refrain::ipc {
namespace {

constexpr size_t kKeyCharacters = 40;
constexpr size_t kMaxFileBytes = size_t{1} << 20;

bool is_key(const std::string& text) {
  uint8_t bytes[32];
  return text.size() == kKeyCharacters && zmq_z85_decode(bytes, text.c_str()) != nullptr;
}

// The content of a small file; `is_secret`: it must be ours (or root's) alone.
Result<std::string> read_file(const std::filesystem::path& path, const std::string& option,
                              bool is_secret) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return fail_field(option, "{} cannot be read: {}", path.string(), ::strerror(errno));
  if (!S_ISREG(info.st_mode)) return fail_field(option, "{} is no regular file", path.string());
  if (is_secret && (info.st_mode & 077) != 0)
    return fail_field(option, "{} is open to other users (mode {:04o}); set it to 0600",
                      path.string(), info.st_mode & 07777);
  if (is_secret && info.st_uid != ::geteuid() && info.st_uid != 0)
    return fail_field(option, "{} belongs to user {}, not to user {}", path.string(), info.st_uid,
                      ::geteuid());
  std::string text(std::min(static_cast<size_t>(info.st_size), kMaxFileBytes) + 1, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return fail_field(option, "{} cannot be read: {}", path.string(), ::strerror(errno));
  if (static_cast<size_t>(got) > kMaxFileBytes)
    return fail_field(option, "{} is larger than {} bytes", path.string(), kMaxFileBytes);
  text.resize(static_cast<size_t>(got));
  return text;
}

struct KeyLine {
  std::string kind;  // "public" or "secret"
  std::string key;
};

Result<std::vector<KeyLine>> parse_lines(const std::string& text, const std::filesystem::path& path,
                                         const std::string& option) {
  std::vector<KeyLine> lines;
  std::istringstream input(text);
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    std::istringstream words(line);
    KeyLine parsed;
    words >> parsed.kind >> parsed.key;
    if (parsed.kind.empty() || parsed.kind == "#") continue;
    // The line is not repeated: it may hold a secret.
    if (parsed.kind != "public" && parsed.kind != "secret")
      return fail_field(option, "{} line {}: \"public KEY\" or \"secret KEY\" is expected",
                        path.string(), number);
    if (!is_key(parsed.key))
      return fail_field(option, "{} line {}: the {} key is not {} characters of Z85", path.string(),
                        number, parsed.kind, kKeyCharacters);
    lines.push_back(std::move(parsed));
  }
  return lines;
}

Status write_new_file(const std::filesystem::path& path, const std::string& text, int flags) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600));
  if (!file || ::fchmod(file.get(), 0600) != 0)
    return fail_field("keygen", "{} cannot be written: {}", path.string(), ::strerror(errno));
  const ssize_t put = ::write(file.get(), text.data(), text.size());
  if (put != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) != 0)
    return fail_field("keygen", "{} cannot be written: {}", path.string(), ::strerror(errno));
  return {};
}

Result<CurveKeyPair> write_new_key(const std::filesystem::path& path, const std::string& name) {
  REFRAIN_ASSIGN_OR_RETURN(CurveKeyPair pair, make_curve_key_pair());
  std::string text = fmt::format("# Key pair of {}. Keep it secret.\npublic {} {}\nsecret {}\n",
                                 name, pair.public_key, name, pair.secret_key);
  const Status written = write_new_file(path, text, O_EXCL);
  ::explicit_bzero(text.data(), text.size());
  if (!written) return forward_error(written.error());
  return pair;
}

bool is_name(const std::string& name) {
  const auto usable = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), usable);
}

// A directory for keys: made with mode 0700; one that is there must keep others from writing.
Status prepare_directory(const std::filesystem::path& directory) {
  struct stat info {};
  if (::mkdir(directory.c_str(), 0700) == 0) return {};
  if (errno != EEXIST || ::stat(directory.c_str(), &info) != 0)
    return fail_field("keygen", "directory {} cannot be made: {}", directory.string(),
                      ::strerror(errno));
  if (!S_ISDIR(info.st_mode))
    return fail_field("keygen", "{} is not a directory", directory.string());
  if ((info.st_mode & 022) != 0)
    return fail_field("keygen", "other users may write to {} (mode {:04o}); set it to 0700",
                      directory.string(), info.st_mode & 07777);
  return {};
}

}  // namespace

CurveKeyPair::~CurveKeyPair() { ::explicit_bzero(secret_key.data(), secret_key.size()); }

Status check_curve_is_there() {
  if (zmq_has("curve") == 1) return {};
  return fail(ErrorCode::kUnavailable,
              "this libzmq has no CURVE: install one built with libsodium, as Debian's is");
}

Result<CurveKeyPair> make_curve_key_pair() {
  REFRAIN_RETURN_IF_ERROR(check_curve_is_there());
  char public_key[kKeyCharacters + 1];
  char secret_key[kKeyCharacters + 1];
  if (zmq_curve_keypair(public_key, secret_key) != 0)
    return fail(ErrorCode::kInternal, "no key pair: {}", zmq_strerror(zmq_errno()));
  CurveKeyPair pair;
  pair.public_key = public_key;
  pair.secret_key = secret_key;
  ::explicit_bzero(secret_key, sizeof secret_key);
  return pair;
}

Result<CurveKeyPair> load_curve_key(const std::filesystem::path& file) {
  const std::string option = "--curve-key";
  REFRAIN_RETURN_IF_ERROR(check_curve_is_there());
  REFRAIN_ASSIGN_OR_RETURN(std::string text, read_file(file, option, true));
  auto lines = parse_lines(text, file, option);
  ::explicit_bzero(text.data(), text.size());
  if (!lines) return forward_error(lines.error());
  CurveKeyPair pair;
  for (KeyLine& line : *lines) {
    std::string& key = line.kind == "public" ? pair.public_key : pair.secret_key;
    if (!key.empty())
      return fail_field(option, "{} holds more than one {} key", file.string(), line.kind);
    key = std::move(line.key);
  }
  if (pair.public_key.empty() || pair.secret_key.empty())
    return fail_field(option, "{} must hold a public and a secret key (`refrain keygen` makes one)",
                      file.string());
  char derived[kKeyCharacters + 1];
  if (zmq_curve_public(derived, pair.secret_key.c_str()) != 0 || pair.public_key != derived)
    return fail_field(option, "{}: the public key is not that of the secret key", file.string());
  return pair;
}

Result<std::vector<std::string>> load_curve_allow_list(const std::filesystem::path& file) {
  const std::string option = "--curve-allow";
  REFRAIN_ASSIGN_OR_RETURN(const std::string text, read_file(file, option, false));
  REFRAIN_ASSIGN_OR_RETURN(const auto lines, parse_lines(text, file, option));
  std::vector<std::string> keys;
  for (const KeyLine& line : lines) {
    if (line.kind != "public")
      return fail_field(option, "{} holds a secret key; it lists public keys only", file.string());
    if (std::find(keys.begin(), keys.end(), line.key) != keys.end())
      return fail_field(option, "{} lists the key {} twice", file.string(), line.key);
    keys.push_back(line.key);
  }
  if (keys.empty()) return fail_field(option, "{} lists no key", file.string());
  return keys;
}

Result<std::vector<std::filesystem::path>> add_curve_keys(const std::filesystem::path& directory,
                                                          const std::vector<std::string>& workers) {
  const auto own = directory / "coordinator.key";
  const auto of_workers = directory / "coordinator.allow";
  const auto of_coordinator = directory / "worker.allow";
  std::error_code error;
  for (const std::string& name : workers) {
    if (!is_name(name) || name == "coordinator")
      return fail_field("keygen",
                        "\"{}\" cannot name a worker: letters, digits, . - _ only, and not "
                        "coordinator",
                        name);
    if (std::filesystem::exists(directory / (name + ".key"), error))
      return fail_field("keygen", "{} is there already; keys are not overwritten",
                        (directory / (name + ".key")).string());
  }
  REFRAIN_RETURN_IF_ERROR(prepare_directory(directory));
  std::vector<std::filesystem::path> written;
  if (!std::filesystem::exists(own, error)) {
    REFRAIN_RETURN_IF_ERROR(write_new_key(own, "coordinator"));
    written.push_back(own);
  }
  if (!std::filesystem::exists(of_coordinator, error)) {
    REFRAIN_ASSIGN_OR_RETURN(const CurveKeyPair pair, load_curve_key(own));
    REFRAIN_RETURN_IF_ERROR(write_new_file(
        of_coordinator,
        fmt::format("# The coordinator that workers connect to.\npublic {} coordinator\n",
                    pair.public_key),
        O_EXCL));
    written.push_back(of_coordinator);
  }
  for (const std::string& name : workers) {
    const auto file = directory / (name + ".key");
    REFRAIN_ASSIGN_OR_RETURN(const CurveKeyPair pair, write_new_key(file, name));
    REFRAIN_RETURN_IF_ERROR(
        write_new_file(of_workers, fmt::format("public {} {}\n", pair.public_key, name), O_APPEND));
    written.push_back(file);
  }
  if (!workers.empty()) written.push_back(of_workers);
  return written;
}

}  // namespace refrain::ipc
