#include "worker/worker/start_times.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace refrain::worker {

double seconds_since_exec() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string line;
  double up = 0;
  if (!std::getline(stat, line) || !(uptime >> up)) return 0;
  // The name, in brackets, may hold spaces; the start is field 22, the 20th after it.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  std::istringstream ticks(field);
  double start = 0;
  if (!(ticks >> start)) return 0;
  return up - start / static_cast<double>(sysconf(_SC_CLK_TCK));
}

StartTimes::StartTimes(const char* first) : last_(steady_clock().now()) {
  add(first, seconds_since_exec());
}

void StartTimes::mark(const char* part) {
  const TimePoint now = steady_clock().now();
  add(part, seconds_between(last_, now));
  last_ = now;
}

void StartTimes::add(const char* part, double seconds) {
  parts_ += fmt::format("{}{} {:.2f} s", parts_.empty() ? "" : ", ", part, seconds);
  total_ += seconds;
}

std::string StartTimes::text() const { return fmt::format("{}; {:.2f} s in all", parts_, total_); }

}  // namespace refrain::worker
