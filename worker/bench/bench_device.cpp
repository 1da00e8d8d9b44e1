#include "worker/bench/bench_device.h"

#include <algorithm>

#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

constexpr double kSampleSeconds = 0.02;
constexpr int kMostCalls = 64;  // of a graph
constexpr int kLimitSamples = 10;
constexpr size_t kChunkBytes = size_t{8} << 20;

}  // namespace

Result<std::unique_ptr<BenchDevice>> BenchDevice::open(const RankOptions& options) {
  const CudaDeviceOptions cuda{options.rank, options.ranks};
  REFRAIN_ASSIGN_OR_RETURN(auto made, create_device(options.device, options.host, cuda));
  std::unique_ptr<BenchDevice> device(new BenchDevice(std::move(made), options.runs));
  REFRAIN_ASSIGN_OR_RETURN(device->group_, device->device_->create_communicator(
                                               {options.token, options.rank, options.ranks,
                                                options.config.collective_timeout_ms}));
  device->stream_ = device->device_->create_stream();
  return device;
}

double BenchDevice::time_once(const std::function<void(int)>& body) {
  const auto begun = stream_->record_time();
  body(0);
  const auto ended = stream_->record_time();
  stream_->synchronize();
  return ended->seconds_since(*begun);
}

double BenchDevice::least_time(const std::function<void(int)>& body, int calls) {
  const auto samples = sample(body, calls, kLimitSamples);
  return *std::min_element(samples.begin(), samples.end());
}

std::vector<double> BenchDevice::sample(const std::function<void(int)>& body, int calls,
                                        int samples_wanted) {
  double once = time_once(body);  // loads code and picks algorithms
  if (calls == 0) {
    if (once < kSampleSeconds) once = time_once(body);
    calls = std::clamp(static_cast<int>(kSampleSeconds / once), 1, kMostCalls);
  }
  stream_->begin_capture();
  for (int i = 0; i < calls; ++i) body(i);
  const auto graph = stream_->end_capture();
  std::vector<double> samples;
  for (int run = 0; run < samples_wanted; ++run) {
    stream_->synchronize();
    group_->barrier();
    // The graph in front keeps the device busy until the timed one has been queued.
    if (!device_->runs_at_once()) stream_->launch(*graph);
    const auto begun = stream_->record_time();
    stream_->launch(*graph);
    const auto ended = stream_->record_time();
    stream_->synchronize();
    samples.push_back(ended->seconds_since(*begun) / calls);
  }
  return samples;
}

std::unique_ptr<Buffer> BenchDevice::numbers(size_t bytes) {
  const auto chunk = device_->allocate_pinned(std::min(bytes, kChunkBytes));
  auto* values = static_cast<BFloat16*>(chunk->data());
  uint32_t state = 1;
  for (size_t i = 0; i < chunk->bytes() / sizeof(BFloat16); ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = to_bfloat16((static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.1f);
  }
  auto memory = scratch(bytes);
  for (size_t at = 0; at < bytes; at += chunk->bytes()) {
    stream_->copy(static_cast<std::byte*>(memory->data()) + at, chunk->data(),
                  std::min(chunk->bytes(), bytes - at));
  }
  stream_->synchronize();
  return memory;
}

}  // namespace refrain::worker
