#pragma once
// What StreamRef.native points to on CUDA: the stream and what library kernels need on it. Made by
// worker/device/cuda, one per stream, at a fixed address for the life of the device. Kernels never
// allocate and never synchronise; every launch may be captured.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

class GemmPlans;    // algorithms picked at load and kept (gemm_cublaslt.h)
class GemmChoices;  // those of earlier starts (gemm_choices.h)

// How many parts of a result have come: the last one to come puts them together and sets its count
// back to zero. Each kernel has its own, [kMaxArrivals]; zeros between launches.
struct Arrivals {
  uint32_t* attention = nullptr;
  uint32_t* greedy = nullptr;
};

struct CudaLauncher {
  cudaStream_t stream = nullptr;
  cublasLtHandle_t cublas_lt = nullptr;
  void* workspace = nullptr;  // for cuBLASLt and parts of results, of this stream alone
  size_t workspace_bytes = 0;
  Arrivals arrivals;
  GemmPlans* gemm_plans = nullptr;
  GemmChoices* gemm_choices = nullptr;  // null: none are kept
  bool tunes = false;  // launches may be timed and run several times: nobody needs their results
  int sm_count = 0;
  bool hopper = false;           // compute capability 9.0
  const char* last_kernel = "";  // the last op launched, for reports of errors that stick
};

inline CudaLauncher& launcher(StreamRef stream) {
  return *static_cast<CudaLauncher*>(stream.native);
}

// Throws FatalError naming the call when the status is not success.
void check_cuda(cudaError_t status, const char* call);

// The kernels of this device; the second: of --batch-invariant (invariant.h).
const KernelTable& cuda_kernel_table();
const KernelTable& invariant_cuda_kernel_table();

}  // namespace refrain::kernels
