#include "runtime/base/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

namespace refrain {
namespace {

constexpr int kStartField = 22;  // of /proc/PID/stat, counted from 1
constexpr int kFirstAfterName = 3;

std::string realm() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || length <= 0) return "";
  return fmt::format("{} {}", boot, std::string(space.data(), static_cast<size_t>(length)));
}

// Of `who`: a pid or "self".
std::optional<uint64_t> start_of(const std::string& who) {
  std::ifstream file(fmt::format("/proc/{}/stat", who));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // the name may hold spaces and brackets
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = kFirstAfterName; i < kStartField; ++i) fields >> field;
  uint64_t start = 0;
  if (!(fields >> start)) return std::nullopt;
  return start;
}

}  // namespace

std::optional<uint64_t> process_start(int64_t pid) { return start_of(fmt::format("{}", pid)); }

ProcessIdentity own_process() {
  const int64_t pid = ::getpid();
  const auto start = start_of("self");
  // A /proc of another pid namespace than this process's knows other processes by these pids.
  if (!start || process_start(pid) != start) return {"", pid, 0};
  return {realm(), pid, *start};
}

}  // namespace refrain
