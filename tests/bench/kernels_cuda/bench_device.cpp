#include "tests/bench/kernels_cuda/bench_device.h"

#include <algorithm>

#include "kernels/cuda/limits.h"
#include "tests/bench/kernels_cuda/fill.h"

namespace refrain::kernels {
namespace {
constexpr int kRounds = 7;
}

BenchDevice::BenchDevice(size_t pool_bytes) : pool_bytes_(pool_bytes) {
  check_cuda(cudaStreamCreateWithFlags(&launcher_.stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  check_cublas(cublasLtCreate(&launcher_.cublas_lt), "cublasLtCreate");
  check_cuda(cudaDeviceGetAttribute(&launcher_.sm_count, cudaDevAttrMultiProcessorCount, 0),
             "cudaDeviceGetAttribute");
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
             "cudaDeviceGetAttribute");
  launcher_.hopper = major == 9;
  launcher_.workspace_bytes = size_t{64} << 20;
  launcher_.workspace = allocate(launcher_.workspace_bytes);
  for (uint32_t** arrivals : {&launcher_.arrivals.attention, &launcher_.arrivals.greedy}) {
    *arrivals = static_cast<uint32_t*>(allocate(kMaxArrivals * sizeof(uint32_t)));
  }
  launcher_.gemm_plans = &plans_;
  pool_ = static_cast<std::byte*>(allocate(pool_bytes));
  fill_hashed(launcher_.stream, pool_, pool_bytes, 1.0f);
  check_cuda(cudaStreamSynchronize(launcher_.stream), "filling the pool");
}

BenchDevice::~BenchDevice() {
  cudaStreamSynchronize(launcher_.stream);
  for (void* memory : memory_) cudaFree(memory);
  cublasLtDestroy(launcher_.cublas_lt);
  cudaStreamDestroy(launcher_.stream);
}

void* BenchDevice::part(size_t bytes, int i) const {
  const size_t size = (bytes + 1023) / 1024 * 1024;
  return pool_ + static_cast<size_t>(i) % (pool_bytes_ / size) * size;
}

void* BenchDevice::allocate(size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  memory_.push_back(memory);
  check_cuda(cudaMemset(memory, 0, bytes), "cudaMemset");
  return memory;
}

Spread BenchDevice::time(int count, const std::function<void(int)>& body) {
  const auto all = [&] {
    for (int i = 0; i < count; ++i) body(i);
  };
  all();
  check_cuda(cudaStreamSynchronize(launcher_.stream), launcher_.last_kernel);
  check_cuda(cudaStreamBeginCapture(launcher_.stream, cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  all();
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(launcher_.stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  for (int round = -1; round < kRounds; ++round) {
    check_cuda(cudaEventRecord(begin, launcher_.stream), "cudaEventRecord");
    check_cuda(cudaGraphLaunch(executable, launcher_.stream), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(end, launcher_.stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), launcher_.last_kernel);
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (round >= 0) times.push_back(ms * 1e3 / count);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return {times[kRounds / 2], times.front(), times.back()};
}

double BenchDevice::read_gbps() {
  auto* out = static_cast<unsigned*>(allocate(sizeof(unsigned)));
  const Spread spread = time(1, [&](int) { read_all(launcher_.stream, pool_, pool_bytes_, out); });
  return static_cast<double>(pool_bytes_) / spread.median * 1e-3;
}

}  // namespace refrain::kernels
