#include "worker/bench/limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace refrain::worker {
namespace {

constexpr int64_t kReadCols = 4096;
constexpr int64_t kFirstSquare = 512, kLastSquare = 8192;
constexpr double kLongEnough = 0.1;  // seconds

kernels::Weight weight_of(BenchDevice& device, const void* data, DType dtype, int64_t n,
                          int64_t k) {
  return {data, dtype, device.device().weight_layout(dtype), n, k};
}

// Seconds of [m, k] times a weight [n, k].
double time_linear(BenchDevice& device, const void* weight, LinearTypes types, int64_t m, int64_t n,
                   int64_t k) {
  const auto in = device.numbers(static_cast<size_t>(m * k) * size_of(types.in));
  const auto out = device.scratch(static_cast<size_t>(m * n) * size_of(types.in));
  kernels::LinearArgs args;
  args.in = {in->data(), types.in, k};
  args.weight = weight_of(device, weight, types.weight, n, k);
  args.out = {out->data(), types.in, n};
  args.rows = {static_cast<int32_t>(m), nullptr};
  return device.least_time([&](int) { device.kernels().linear(device.stream().ref(), args); });
}

}  // namespace

double measure_copy(BenchDevice& device, const Pool& pool) {
  const size_t half = pool.bytes() / 2 / 1024 * 1024;
  return static_cast<double>(half) / device.least_time([&](int i) {
    std::byte* halves[2] = {pool.data(), pool.data() + half};
    device.stream().copy(halves[i % 2], halves[(i + 1) % 2], half);
  });
}

Limits measure_limits(BenchDevice& device, const Pool& pool, LinearTypes types) {
  Limits limits;
  const double copied = 2 * measure_copy(device, pool);
  // A device may pad rows: as many as surely fit.
  const int64_t row_bytes = kReadCols * static_cast<int64_t>(size_of(types.weight));
  const int64_t n = static_cast<int64_t>(pool.bytes()) / row_bytes / 16 * 16;
  const double bytes = static_cast<double>(n * row_bytes);
  const double read = bytes / time_linear(device, pool.data(), types, 1, n, kReadCols);
  limits.read = std::max(copied, read);
  limits.read_source =
      fmt::format("{} over {} MiB, measured",
                  copied > read ? "a copy, read and written" : "a weight read", pool.bytes() >> 20);
  for (int64_t size = kFirstSquare; size <= kLastSquare; size *= 2) {
    const auto weight = device.numbers(device.device().weight_bytes(types.weight, size, size));
    const double seconds = time_linear(device, weight->data(), types, size, size, size);
    const double rate = 2.0 * static_cast<double>(size * size * size) / seconds;
    if (rate > limits.flops) {
      limits.flops = rate;
      limits.flops_source = fmt::format("a GEMM of {0} x {0} x {0}, measured", size);
    }
    if (seconds > kLongEnough) break;
  }
  return limits;
}

Bound bound_of(const Limits& limits, double bytes, double flops) {
  const double memory = bytes / limits.read, arithmetic = flops / limits.flops;
  return {std::max(memory, arithmetic), memory >= arithmetic};
}

}  // namespace refrain::worker
