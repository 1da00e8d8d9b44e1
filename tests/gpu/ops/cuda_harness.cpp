// The CUDA device for the op tests: every buffer an allocation of its own, so that
// compute-sanitizer sees accesses past it. Skips every test where there is no GPU.
#include <cuda_runtime.h>

#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/limits.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

class CudaHarness : public Harness {
 public:
  CudaHarness() {
    check_cuda(cudaStreamCreateWithFlags(&launcher_.stream, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
    check_cublas(cublasLtCreate(&launcher_.cublas_lt), "cublasLtCreate");
    launcher_.workspace_bytes = size_t{32} << 20;
    launcher_.workspace = allocate(launcher_.workspace_bytes);
    for (uint32_t** arrivals : {&launcher_.arrivals.attention, &launcher_.arrivals.greedy}) {
      *arrivals = static_cast<uint32_t*>(allocate(kMaxArrivals * sizeof(uint32_t)));
      check_cuda(cudaMemsetAsync(*arrivals, 0, kMaxArrivals * sizeof(uint32_t), launcher_.stream),
                 "cudaMemsetAsync");
    }
    launcher_.gemm_plans = &plans_;
    check_cuda(cudaDeviceGetAttribute(&launcher_.sm_count, cudaDevAttrMultiProcessorCount, 0),
               "cudaDeviceGetAttribute");
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
               "cudaDeviceGetAttribute");
    launcher_.hopper = major == 9;
  }
  ~CudaHarness() override {
    cudaStreamSynchronize(launcher_.stream);
    for (void* memory : memory_) cudaFree(memory);
    cublasLtDestroy(launcher_.cublas_lt);
    cudaStreamDestroy(launcher_.stream);
  }

  const KernelTable& table() const override { return cuda_kernel_table(); }
  StreamRef stream() override { return {&launcher_}; }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    memory_.push_back(memory);
    check_cuda(cudaMemsetAsync(memory, 0xff, bytes, launcher_.stream), "cudaMemsetAsync");
    return memory;
  }
  void upload(void* device, const void* host, size_t bytes) override {
    check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, launcher_.stream),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(launcher_.stream), "cudaStreamSynchronize");
  }
  void download(void* host, const void* device, size_t bytes) override {
    check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, launcher_.stream),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(launcher_.stream), "cudaStreamSynchronize");
  }

  WeightLayout weight_layout() const override { return WeightLayout::kRowMajor; }
  bool bitwise_across_keys() const override { return false; }
  bool writes_dead_rows() const override { return true; }
  // The weights of the softmax are rounded to bfloat16 before they meet the values (at most 2).
  double attention_error(DType dtype) const override {
    return dtype == DType::kBFloat16 ? 4e-3 : 2e-5;
  }

 private:
  CudaLauncher launcher_;
  GemmPlans plans_;
  std::vector<void*> memory_;
};

}  // namespace

std::vector<HarnessChoice> all_harnesses() {
  return {{"cuda", []() -> std::unique_ptr<Harness> {
             int devices = 0;
             if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return nullptr;
             return std::make_unique<CudaHarness>();
           }}};
}

}  // namespace refrain::kernels
