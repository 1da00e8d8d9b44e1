// Cost of one dispatch with 200 keys (CG-16: below 100 ns), over batches of every kind and size, as
// JSON. Options: --runs N (samples of 100,000 dispatches each), --keys N.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "worker/dispatch/dispatcher.h"

namespace refrain::worker {
namespace {

constexpr int kDispatches = 100'000;
constexpr double kLimitNs = 100;

// Half of the keys are decodes, half mixed.
CudagraphDispatcher make_dispatcher(int keys) {
  CudagraphOptions options;
  options.max_num_seqs = 8 * keys;
  options.max_num_batched_tokens = 16 * keys;
  options.capture_sizes.emplace();
  for (int i = 1; i <= keys / 2; ++i) options.capture_sizes->push_back(8 * i);
  CudagraphDispatcher dispatcher(*resolve_cudagraph_config(options, {}, true));
  dispatcher.set_captured();
  return dispatcher;
}

std::vector<BatchShape> make_batches(int keys) {
  std::mt19937 random(1);
  std::vector<BatchShape> batches(4096);
  for (BatchShape& batch : batches) {
    batch.num_tokens = 1 + static_cast<int32_t>(random() % static_cast<unsigned>(5 * keys));
    batch.uniform = random() % 2 == 0;
    batch.num_reqs = batch.uniform ? batch.num_tokens : 1 + batch.num_tokens / 3;
    batch.cascade = random() % 16 == 0;
  }
  return batches;
}

int run(int runs, int keys) {
  const CudagraphDispatcher dispatcher = make_dispatcher(keys);
  const std::vector<BatchShape> batches = make_batches(keys);
  std::vector<double> nanoseconds;
  int64_t checksum = 0;
  for (int sample = 0; sample < runs; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kDispatches; ++i) {
      checksum += dispatcher.dispatch(batches[static_cast<size_t>(i) % batches.size()]).id;
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(taken.count() / kDispatches);
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  const double median = nanoseconds[nanoseconds.size() / 2];
  const size_t held =
      dispatcher.keys(RuntimeMode::kFull).size() + dispatcher.keys(RuntimeMode::kPiecewise).size();
  const nlohmann::ordered_json line = {
      {"case", "dispatch"},
      {"keys", held},
      {"unit", "ns"},
      {"runs", runs},
      {"min", nanoseconds.front()},
      {"median", median},
      {"p99", nanoseconds[static_cast<size_t>(static_cast<double>(runs - 1) * 0.99)]},
      {"achieved", median},
      {"limit", kLimitNs},
      {"limit_source", "CG-16"},
      {"checksum", checksum}};
  fmt::print("{}\n", line.dump());
  return median < kLimitNs ? 0 : 1;
}

}  // namespace
}  // namespace refrain::worker

int main(int argc, char** argv) {
  int runs = 50, keys = 200;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const int value = i + 1 < argc ? std::atoi(argv[i + 1]) : 0;
    if ((name != "--runs" && name != "--keys") || value < 2) {
      fmt::print(stderr, "usage: dispatch_bench [--runs N] [--keys N], both at least 2\n");
      return 64;
    }
    (name == "--runs" ? runs : keys) = value;
  }
  return refrain::worker::run(runs, keys);
}
