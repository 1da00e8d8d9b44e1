#include "runtime/base/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

namespace refrain {
namespace {

namespace fs = std::filesystem;
constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "400000 100000": microseconds in each period. Without a limit the first is "max" or -1.
int32_t processors_of(const std::string& quota_and_period) {
  std::istringstream text(quota_and_period);
  int64_t quota = 0, period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return kNoLimit;
  return static_cast<int32_t>(std::clamp<int64_t>(quota / period, 1, kNoLimit - 1));
}

int32_t limit_in(const fs::path& v2, const fs::path& v1) {
  return std::min(
      processors_of(text_of(v2 / "cpu.max")),
      processors_of(text_of(v1 / "cpu.cfs_quota_us") + " " + text_of(v1 / "cpu.cfs_period_us")));
}

}  // namespace

int32_t paid_processors(const fs::path& root, const std::string& groups) {
  int32_t least = limit_in(root, root / "cpu");
  // Lines such as "0::/user.slice" (version 2) and "4:cpu,cpuacct:/docker/17" (1).
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t names = line.find(':') + 1, path = line.find(':', names) + 1;
    if (names == 0 || path == 0) continue;
    const std::string controllers = "," + line.substr(names, path - names - 1) + ",";
    const fs::path inside = fs::path(line.substr(path)).relative_path();
    if (controllers == ",," || controllers.find(",cpu,") != std::string::npos)
      least = std::min(least, limit_in(root / inside, root / "cpu" / inside));
  }
  return least == kNoLimit ? 0 : least;
}

int32_t usable_processors() {
  cpu_set_t set;
  const int32_t allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const int32_t paid = paid_processors("/sys/fs/cgroup", text_of("/proc/self/cgroup"));
  return std::max(1, paid == 0 ? allowed : std::min(allowed, paid));
}

}  // namespace refrain
