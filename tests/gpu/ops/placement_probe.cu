#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "tests/gpu/ops/placement_probe.h"

namespace refrain::kernels {
namespace {

__device__ uint64_t nanoseconds() {
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__device__ void stay(uint64_t ns) {
  const uint64_t begin = nanoseconds();
  while (nanoseconds() - begin < ns) continue;
}

// Its successor may start at once, and finds these blocks on the multiprocessors.
__global__ void others_kernel() {
  let_successor_start();
  stay(30000);
}

// Long enough that all blocks are there together.
__global__ void probe_kernel(uint32_t* ids) {
  if (threadIdx.x == 0) {
    uint32_t id = 0;
    asm volatile("mov.u32 %0, %smid;" : "=r"(id));
    ids[blockIdx.x] = id;
  }
  stay(60000);
}

}  // namespace

std::vector<uint32_t> probe_placement(cudaStream_t stream, unsigned blocks, unsigned threads,
                                      size_t shared_bytes, unsigned others) {
  uint32_t* ids = nullptr;
  check_cuda(cudaMalloc(&ids, blocks * sizeof(uint32_t)), "cudaMalloc");
  CudaLauncher launcher;
  launcher.stream = stream;
  LaunchShape shape;
  shape.grid = dim3(others);
  launch<&others_kernel>({&launcher}, "others", shape);
  shape.grid = dim3(blocks);
  shape.threads = static_cast<int>(threads);
  shape.shared_bytes = shared_bytes;
  launch<&probe_kernel, kMaxSharedBytes>({&launcher}, "probe", shape, ids);
  std::vector<uint32_t> found(blocks);
  check_cuda(
      cudaMemcpyAsync(found.data(), ids, blocks * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream),
      "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check_cuda(cudaFree(ids), "cudaFree");
  return found;
}

}  // namespace refrain::kernels
