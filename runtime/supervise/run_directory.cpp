#include "runtime/supervise/run_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string_view>

#include "runtime/base/log.h"

namespace refrain {
namespace {

constexpr std::string_view kDirectory = "refrain-";        // then pid and a random number
constexpr std::string_view kSegment = "refrain-refrain-";  // then the engine's pid
// Seconds. Shared memory of an owner in another pid namespace may be younger; a group that takes
// longer to meet has failed.
constexpr time_t kYoung = 60;

std::string base_directory() {
  constexpr size_t kLongest = 64;  // a socket's path has at most 107 characters
  std::string base = "/tmp";
  for (const char* name : {"TMPDIR", "XDG_RUNTIME_DIR"}) {
    const char* given = std::getenv(name);
    const bool usable = given != nullptr && *given == '/' &&
                        std::string_view(given).size() <= kLongest &&
                        ::access(given, W_OK | X_OK) == 0;
    if (usable) base = given;
  }
  return base;
}

// The pid in "<begin><pid>-..."; nothing when the name is another one's.
std::optional<pid_t> owner_of(std::string_view name, std::string_view begin) {
  if (!name.starts_with(begin)) return std::nullopt;
  name.remove_prefix(begin.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  const bool whole = error == std::errc() && pid > 0 && end != name.data() + name.size();
  if (!whole || *end != '-') return std::nullopt;
  return pid;
}

bool lives(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

// Ours, of the type, and not young.
bool is_old_own(const std::filesystem::path& path, mode_t type) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && (info.st_mode & S_IFMT) == type &&
         info.st_uid == ::geteuid() && std::time(nullptr) - info.st_mtime > kYoung;
}

// Ours, and nobody holds its lock: that tells of an owner in another pid namespace, too.
bool is_unlocked_directory(const std::filesystem::path& path) {
  struct stat info {};
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::fstat(fd.get(), &info) != 0 || info.st_uid != ::geteuid()) return false;
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

// Calls remove(path, pid) for each entry of the directory with such a name.
void for_each_run(const std::string& directory, std::string_view begin,
                  const std::function<void(const std::filesystem::path&, pid_t)>& remove) {
  std::error_code error;  // without the directory there is nothing to remove
  std::filesystem::directory_iterator at(directory, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (const auto owner = owner_of(at->path().filename().string(), begin)) {
      remove(at->path(), *owner);
    }
  }
}

}  // namespace

Result<RunDirectory> RunDirectory::create() {
  remove_stale_runs();
  std::string path = fmt::format("{}/{}{}-{:08x}", base_directory(), kDirectory, ::getpid(),
                                 std::random_device{}());
  if (::mkdir(path.c_str(), 0700) != 0) {
    const ErrorCode code =
        errno == ENOSPC || errno == EDQUOT ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;
    return fail(code, "no private directory {}: {} (set TMPDIR to a directory with room)", path,
                std::strerror(errno));
  }
  UniqueFd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kUnavailable, "{} cannot be locked: {}", path, std::strerror(errno));
  }
  return RunDirectory(std::move(path), std::move(lock));
}

RunDirectory::~RunDirectory() {
  if (path_.empty() || !lock_) return;
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) log::warn("{} is left: {}", path_, error.message());
}

void remove_stale_runs() {
  for_each_run(base_directory(), kDirectory, [](const std::filesystem::path& path, pid_t owner) {
    std::error_code error;
    // Its pid tells of an owner that has yet to lock it.
    if (!lives(owner) && is_unlocked_directory(path) &&
        std::filesystem::remove_all(path, error) > 0 && !error)
      log::info("removed {} of a process that is gone", path.string());
  });
  for_each_run("/dev/shm", kSegment, [](const std::filesystem::path& path, pid_t owner) {
    std::error_code error;
    if (!lives(owner) && is_old_own(path, S_IFREG) && std::filesystem::remove(path, error))
      log::info("removed {} of a process that is gone", path.string());
  });
}

void remove_run_of(pid_t gone) {
  for_each_run(base_directory(), kDirectory, [&](const std::filesystem::path& path, pid_t owner) {
    std::error_code error;  // then it goes at the next start
    if (owner == gone && is_unlocked_directory(path)) std::filesystem::remove_all(path, error);
  });
}

namespace {

void remove_segments(pid_t engine_pid, const std::string& group) {
  const std::string begin = fmt::format("{}{}-{}", kSegment, engine_pid, group);
  for_each_run("/dev/shm", kSegment, [&](const std::filesystem::path& path, pid_t owner) {
    std::error_code error;  // another user's
    const bool ours = owner == engine_pid && path.filename().string().starts_with(begin);
    if (ours && std::filesystem::remove(path, error))
      log::debug("removed shared memory {} of a group that ended while it started", path.string());
  });
}

}  // namespace

void remove_segments_of(pid_t engine_pid) { remove_segments(engine_pid, ""); }

// Tokens of groups say which group it is (group_options of the engine).
void remove_segments_of(pid_t engine_pid, int group) {
  remove_segments(engine_pid, fmt::format("g{}-", group));
}

}  // namespace refrain
