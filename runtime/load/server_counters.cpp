#include "runtime/load/server_counters.h"

#include <array>
#include <cstdlib>
#include <sstream>

namespace refrain {
namespace {

struct Counter {
  const char* name;
  uint64_t ServerCounters::*value;
};

constexpr std::array kCounters = {
    Counter{"refrain:worker_group_restarts_total", &ServerCounters::group_restarts},
    Counter{"refrain:requests_resumed_total", &ServerCounters::requests_resumed},
    Counter{"refrain:requests_without_logit_total", &ServerCounters::requests_without_logit},
    Counter{"refrain:audit_differences_total", &ServerCounters::audit_differences},
};

}  // namespace

Result<std::optional<ServerCounters>> read_counters(const std::string& metrics) {
  std::array<std::optional<uint64_t>, kCounters.size()> values;
  bool is_refrain = false;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("refrain:")) continue;
    is_refrain = true;
    const std::string name = line.substr(0, line.find_first_of("{ "));
    for (size_t i = 0; i < kCounters.size(); ++i) {
      if (name != kCounters[i].name) continue;
      const double value = std::strtod(line.c_str() + line.rfind(' '), nullptr);
      values[i] = values[i].value_or(0) + static_cast<uint64_t>(value);
    }
  }
  if (!is_refrain) return std::nullopt;
  ServerCounters counters;
  for (size_t i = 0; i < kCounters.size(); ++i) {
    if (!values[i]) {
      return fail(ErrorCode::kInternal,
                  "{} is not in the server's /metrics: nothing shows that it was undisturbed",
                  kCounters[i].name);
    }
    counters.*kCounters[i].value = *values[i];
  }
  return counters;
}

Status undisturbed(const ServerCounters& before, const ServerCounters& after) {
  bool same = true;
  for (const Counter& counter : kCounters) {
    same = same && before.*counter.value == after.*counter.value;
  }
  if (same) return {};
  // A counter that went back is of another server: the difference is then as large as it gets.
  const auto moved = [&](uint64_t ServerCounters::*value) { return after.*value - before.*value; };
  return fail(
      ErrorCode::kInternal,
      "the workers were lost {} times while this was measured, {} requests were resumed, {} had no "
      "finite logit and audits found {} differences: there are no figures (the log says why)",
      moved(&ServerCounters::group_restarts), moved(&ServerCounters::requests_resumed),
      moved(&ServerCounters::requests_without_logit), moved(&ServerCounters::audit_differences));
}

}  // namespace refrain
