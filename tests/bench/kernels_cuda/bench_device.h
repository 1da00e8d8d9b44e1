#pragma once
// The GPU of the kernel benchmark: one stream, one large pool of hashed data whose parts take
// turns, so that weights come from memory and not from the cache. Launches are captured and
// replayed.

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/launcher.h"

namespace refrain::kernels {

struct Spread {
  double median = 0;  // microseconds of one launch
  double lowest = 0;
  double highest = 0;
};

class BenchDevice {
 public:
  explicit BenchDevice(size_t pool_bytes);
  ~BenchDevice();
  BenchDevice(const BenchDevice&) = delete;
  BenchDevice& operator=(const BenchDevice&) = delete;

  StreamRef stream() { return {&launcher_}; }
  cudaStream_t native() const { return launcher_.stream; }
  // The i-th part of `bytes` of the pool, in turn.
  void* part(size_t bytes, int i) const;
  size_t pool_bytes() const { return pool_bytes_; }
  void* allocate(size_t bytes);  // zeros, freed with the device
  template <class T>
  T* put(const std::vector<T>& values) {
    void* memory = allocate(values.size() * sizeof(T));
    check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
               "cudaMemcpy");
    return static_cast<T*>(memory);
  }
  // Runs body(0 … count - 1) once, then captures them as one graph and times its replays.
  Spread time(int count, const std::function<void(int)>& body);
  double read_gbps();  // the rate of reading alone

 private:
  CudaLauncher launcher_;
  GemmPlans plans_;
  size_t pool_bytes_;
  std::byte* pool_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace refrain::kernels
