#include <algorithm>
#include <limits>

#include "worker/bench/kinds.h"
#include "worker/comm/bench_access.h"

namespace refrain::worker {
namespace {

constexpr int64_t kGraphBytes = int64_t{64} << 20;  // what the sums of a graph move together,
constexpr int kLeastSums = 2, kMostSums = 32;       // within these numbers of sums

int sums_in_graph(int64_t bytes) {
  return std::clamp(static_cast<int>(kGraphBytes / bytes), kLeastSums, kMostSums);
}

double least(const std::vector<double>& samples) {
  return *std::min_element(samples.begin(), samples.end());
}

}  // namespace

double AllReduceBench::copy_to_next_rank(size_t bytes) {
  BenchDevice& device = s_.device;
  const auto from = device.numbers(bytes);
  const auto to = bench_access(device.group()).next_rank_memory(bytes);
  const double seconds =
      device.least_time([&](int) { device.stream().copy(to->data(), from->data(), bytes); },
                        sums_in_graph(static_cast<int64_t>(bytes)));
  device.group().barrier();
  return static_cast<double>(bytes) / seconds;
}

std::vector<double> AllReduceBench::time_sum(void* data, int64_t bytes, const std::string& way) {
  Communicator& group = s_.device.group();
  bench_access(group).hold_to_sum_way(way);
  const int64_t count = bytes / static_cast<int64_t>(size_of(DType::kBFloat16));
  auto seconds = s_.device.time(
      [&](int) {
        group.all_reduce(s_.device.stream(), {data, DType::kBFloat16, count}, count, {1, nullptr});
      },
      sums_in_graph(bytes));
  bench_access(group).hold_to_sum_way({});
  return seconds;
}

// A rank sends and receives 2 (n - 1) / n of the message at least, after the latency.
void AllReduceBench::write(const Sample& sample, double latency, double copied) const {
  const int ranks = s_.options.ranks;
  const double bus_bytes = static_cast<double>(sample.bytes) * 2 * (ranks - 1) / ranks;
  const double taken = median(sample.seconds);
  RankCase one;
  one.unit = "us";
  for (const double seconds : sample.seconds) one.samples.push_back(seconds * 1e6);
  one.achieved = bus_bytes / taken;
  one.limit = bus_bytes / (latency + bus_bytes / copied);
  one.limit_source = "the least time of any message and copies to the next rank, measured";
  one.more = {
      {"what", fmt::format("{} {} bytes", sample.way, sample.bytes)},
      {"implementation", sample.way},
      {"own_choice", bench_access(s_.device.group()).sum_ways(sample.bytes).front() == sample.way},
      {"bytes", sample.bytes},
      {"sums_in_graph", sums_in_graph(sample.bytes)},
      {"gb_s", one.achieved * 1e-9},
      {"latency_us", latency * 1e6},
      {"copy_to_next_rank_gb_s", copied * 1e-9}};
  s_.cases.write(std::move(one));
}

Status AllReduceBench::run() {
  const std::vector<int64_t>& messages = s_.options.messages;
  const int64_t largest = *std::max_element(messages.begin(), messages.end());
  const double copied = copy_to_next_rank(static_cast<size_t>(largest));
  const auto data = s_.device.numbers(static_cast<size_t>(largest));
  std::vector<Sample> samples;
  double latency = std::numeric_limits<double>::max();  // the smallest message's, noise apart
  for (const int64_t bytes : messages) {
    for (const std::string& way :
         bench_access(s_.device.group()).sum_ways(static_cast<size_t>(bytes))) {
      samples.push_back({bytes, way, time_sum(data->data(), bytes, way)});
      latency = std::min(latency, least(samples.back().seconds));
    }
  }
  s_.device.group().barrier();
  if (s_.options.rank > 0) return {};
  for (const Sample& sample : samples) write(sample, latency, copied);
  return {};
}

}  // namespace refrain::worker
