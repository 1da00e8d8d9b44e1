#include "worker/worker/launcher_environment.h"

#include <charconv>
#include <span>
#include <string_view>

namespace refrain::worker {
namespace {

constexpr int kMost = 1'000'000;
constexpr const char* kRanks[] = {"RANK", "SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK",
                                  "LWS_WORKER_INDEX"};
constexpr const char* kSizes[] = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE",
                                  "LWS_GROUP_SIZE"};

std::string text_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

Result<std::optional<int>> number_from(const Environment& environment,
                                       std::span<const char* const> names, const char* field) {
  std::optional<int> found;
  const char* said_by = nullptr;
  for (const char* name : names) {
    const std::string text = text_of(environment, name);
    if (text.empty()) continue;
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > kMost)
      return fail_field(field, "\"{}\" from the environment is not a number ({})", text, name);
    if (found && *found != number)
      return fail_field(field, "the environment says {} ({}) and {} ({}); give --{}", *found,
                        said_by, number, name, field);
    found = number;
    said_by = name;
  }
  return found;
}

std::string tcp(const std::string& host, const Environment& environment) {
  const std::string port = text_of(environment, "MASTER_PORT");
  const bool bare_ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return fmt::format("tcp://{}:{}", bare_ipv6 ? "[" + host + "]" : host,
                     port.empty() ? kCoordinatorPort : port);
}

}  // namespace

Result<std::optional<int>> rank_from(const Environment& environment) {
  return number_from(environment, kRanks, "rank");
}

Result<std::optional<int>> size_from(const Environment& environment) {
  return number_from(environment, kSizes, "tensor-parallel-size");
}

std::string coordinator_from(const Environment& environment) {
  if (std::string address = text_of(environment, "REFRAIN_COORDINATOR"); !address.empty())
    return address;
  for (const char* name : {"MASTER_ADDR", "LWS_LEADER_ADDRESS", "SLURM_LAUNCH_NODE_IPADDR"}) {
    if (const std::string host = text_of(environment, name); !host.empty())
      return tcp(host, environment);
  }
  return "";
}

}  // namespace refrain::worker
