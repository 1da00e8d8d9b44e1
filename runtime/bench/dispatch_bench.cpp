#include "runtime/bench/dispatch_bench.h"

#include <chrono>
#include <random>
#include <vector>

#include "runtime/base/build_info.h"
#include "runtime/base/check.h"
#include "runtime/base/report.h"
#include "runtime/bench/bench_report.h"
#include "worker/dispatch/dispatcher.h"

namespace refrain {
namespace {

constexpr int kDispatches = 100'000;  // a sample
constexpr int kSamples = 10;          // a run
constexpr double kLimitNs = 100;      // CG-16
constexpr int32_t kSizes = 100;       // of the default list: 100 decode and 100 mixed keys
constexpr int32_t kStride = 8;

worker::CudagraphOptions graph_options(const ipc::WorkerConfig& config) {
  worker::CudagraphOptions options = worker::cudagraph_options(config);
  if (config.has_capture_sizes) return options;
  options.capture_sizes.emplace();
  for (int32_t i = 1; i <= kSizes; ++i) options.capture_sizes->push_back(kStride * i);
  options.max_capture_size.reset();
  options.max_num_seqs = kStride * kSizes;
  options.max_num_batched_tokens = 2 * kStride * kSizes;
  return options;
}

// Decodes and mixed batches up to a quarter above the largest key.
std::vector<worker::BatchShape> make_batches(int32_t largest) {
  std::mt19937 random(1);
  std::vector<worker::BatchShape> batches(4096);
  for (worker::BatchShape& batch : batches) {
    batch.num_tokens = 1 + static_cast<int32_t>(random() % static_cast<unsigned>(largest * 5 / 4));
    batch.uniform = random() % 2 == 0;
    batch.num_reqs = batch.uniform ? batch.num_tokens : 1 + batch.num_tokens / 3;
    batch.cascade = random() % 16 == 0;
  }
  return batches;
}

double sample_ns(const worker::CudagraphDispatcher& dispatcher,
                 const std::vector<worker::BatchShape>& batches, int64_t& checksum) {
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kDispatches; ++i) {
    checksum += dispatcher.dispatch(batches[static_cast<size_t>(i) % batches.size()]).id;
  }
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begun;
  return taken.count() / kDispatches;
}

}  // namespace

int run_dispatch_bench(const BenchOptions& options) {
  auto config = worker::resolve_cudagraph_config(graph_options(options.config.worker), {}, true);
  if (!config) return report(config.error());
  const int32_t largest = config->capture_sizes.empty() ? 1 : config->capture_sizes.back();
  worker::CudagraphDispatcher dispatcher(std::move(*config));
  dispatcher.set_captured();
  const auto batches = make_batches(largest);
  BenchCase row;
  row.name = "dispatch";
  row.unit = "ns";
  int64_t checksum = 0;
  for (int i = 0; i < kSamples * options.runs; ++i) {
    row.samples.push_back(sample_ns(dispatcher, batches, checksum));
  }
  row.achieved = percentile(row.samples, 0.5);
  row.limit = kLimitNs;
  row.limit_source = "CG-16";
  row.more = {{"mode", options.config.worker.cudagraph_mode},
              {"model", nullptr},  // keys alone: no model, batches of every size
              {"device", "host"},
              {"tp", options.config.worker.tensor_parallel_size},
              {"ms_per_step", row.achieved * 1e-6},
              {"keys", dispatcher.keys(worker::RuntimeMode::kFull).size() +
                           dispatcher.keys(worker::RuntimeMode::kPiecewise).size()},
              {"largest", largest},
              {"checksum", checksum},  // keeps the dispatches from being left out
              {"build", build_id()}};
  print_cases({row}, options.json);
  return kExitOk;
}

}  // namespace refrain
