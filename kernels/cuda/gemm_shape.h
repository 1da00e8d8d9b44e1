#pragma once
// A linear as cuBLASLt sees it: what its algorithms depend on, its descriptors, and what it
// proposes. Used by a stream's thread.

#include <cublasLt.h>

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/op_args.h"
#include "kernels/cuda/launcher.h"

namespace refrain::kernels {

// What an algorithm depends on. Alignments are of the address, in bytes, 256 at most.
struct GemmKey {
  int64_t m, n, k, in_stride, out_stride, residual_stride;
  DType in, weight, out;
  bool bias, residual;
  uint32_t in_align, weight_align, out_align, residual_align;
  bool invariant = false;  // one algorithm for any m, which adds in one sequence
  auto operator<=>(const GemmKey&) const = default;
};

GemmKey key_of(const LinearArgs& args);
// In one word, the same for as long as files with algorithms are to be read.
std::string text_of(const GemmKey& key);

// cuBLASLt is column-major: out is [n, m], the weight [k, n] transposed, the input [k, m].
struct Gemm {
  cublasLtMatmulDescOpaque_t op{};
  cublasLtMatrixLayoutOpaque_t weight{}, in{}, residual{}, out{};
  std::optional<cublasLtMatmulAlgo_t> algo;  // none: cuBLASLt has none
};

void make_descriptors(const GemmKey& key, Gemm& gemm);

// What cuBLASLt takes for it, the likeliest first; none: it has nothing.
std::vector<cublasLtMatmulAlgo_t> propose(const CudaLauncher& launcher, const GemmKey& key,
                                          Gemm& gemm);
bool takes(const CudaLauncher& launcher, Gemm& gemm, const cublasLtMatmulAlgo_t& algo);
// Enqueues it.
void multiply(const CudaLauncher& launcher, Gemm& gemm, const cublasLtMatmulAlgo_t& algo,
              const LinearArgs& args);

}  // namespace refrain::kernels
