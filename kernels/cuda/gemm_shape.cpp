#include "kernels/cuda/gemm_shape.h"

#include <fmt/format.h>

#include <span>

#include "kernels/cuda/gemm_cublaslt.h"
#include "runtime/base/check.h"

namespace refrain::kernels {
namespace {

// Of the address of every row: cuBLASLt takes the first row's for all.
uint32_t alignment(const void* address, int64_t stride, DType dtype) {
  const auto bits = reinterpret_cast<uintptr_t>(address) |
                    static_cast<uintptr_t>(stride * static_cast<int64_t>(size_of(dtype)));
  uint32_t align = 256;
  while (bits % align != 0) align /= 2;
  return align;
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

}  // namespace

GemmKey key_of(const LinearArgs& args) {
  const bool residual = args.residual.data != nullptr;
  return {
      args.rows.padded,
      args.weight.n,
      args.weight.k,
      args.in.stride,
      args.out.stride,
      residual ? args.residual.stride : 0,
      args.in.dtype,
      args.weight.dtype,
      args.out.dtype,
      args.bias != nullptr,
      residual,
      alignment(args.in.data, args.in.stride, args.in.dtype),
      alignment(args.weight.data, args.weight.k, args.weight.dtype),
      alignment(args.out.data, args.out.stride, args.out.dtype),
      residual ? alignment(args.residual.data, args.residual.stride, args.residual.dtype) : 256};
}

std::string text_of(const GemmKey& key) {
  return fmt::format("m{}n{}k{}i{}o{}r{}t{}{}{}b{}s{}a{}-{}-{}-{}", key.m, key.n, key.k,
                     key.in_stride, key.out_stride, key.residual_stride, static_cast<int>(key.in),
                     static_cast<int>(key.weight), static_cast<int>(key.out), int{key.bias},
                     int{key.residual}, key.in_align, key.weight_align, key.out_align,
                     key.residual_align);
}

void make_descriptors(const GemmKey& key, Gemm& gemm) {
  // CUBLAS_COMPUTE_32F keeps float32 inputs at full precision (no TF32).
  check_cublas(cublasLtMatmulDescInit(&gemm.op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescInit");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check_cublas(cublasLtMatmulDescSetAttribute(&gemm.op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof(transposed)),
               "cublasLtMatmulDescSetAttribute(TRANSA)");
  if (key.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = CUDA_R_32F;
    check_cublas(cublasLtMatmulDescSetAttribute(&gemm.op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                sizeof(epilogue)),
                 "cublasLtMatmulDescSetAttribute(EPILOGUE)");
    check_cublas(cublasLtMatmulDescSetAttribute(&gemm.op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                &type, sizeof(type)),
                 "cublasLtMatmulDescSetAttribute(BIAS_DATA_TYPE)");
  }
  const auto layout = [](cublasLtMatrixLayoutOpaque_t& at, DType dtype, int64_t rows, int64_t cols,
                         int64_t stride) {
    check_cublas(cublasLtMatrixLayoutInit(&at, type_of(dtype), static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(cols), stride),
                 "cublasLtMatrixLayoutInit");
  };
  layout(gemm.weight, key.weight, key.k, key.n, key.k);
  layout(gemm.in, key.in, key.k, key.m, key.in_stride);
  layout(gemm.out, key.out, key.n, key.m, key.out_stride);
  layout(gemm.residual, key.out, key.n, key.m, key.residual ? key.residual_stride : key.out_stride);
}

std::vector<cublasLtMatmulAlgo_t> propose(const CudaLauncher& launcher, const GemmKey& key,
                                          Gemm& gemm) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto set = [&preference](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{launcher.workspace_bytes});
  // Parts of a split sum are added in float32, never in the output's type.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{key.invariant ? CUBLASLT_REDUCTION_SCHEME_NONE
                             : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.in_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      key.residual ? key.residual_align : key.out_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align);
  constexpr int kMost = 8;
  cublasLtMatmulHeuristicResult_t results[kMost] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      launcher.cublas_lt, &gemm.op, &gemm.weight, &gemm.in, &gemm.residual, &gemm.out, &preference,
      kMost, results, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> proposals;
  for (const auto& result : std::span(results).first(static_cast<size_t>(count)))
    if (result.state == CUBLAS_STATUS_SUCCESS) proposals.push_back(result.algo);
  return proposals;
}

bool takes(const CudaLauncher& launcher, Gemm& gemm, const cublasLtMatmulAlgo_t& algo) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(launcher.cublas_lt, &gemm.op, &gemm.weight, &gemm.in,
                                 &gemm.residual, &gemm.out, &algo,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= launcher.workspace_bytes;
}

void multiply(const CudaLauncher& launcher, Gemm& gemm, const cublasLtMatmulAlgo_t& algo,
              const LinearArgs& args) {
  if (args.bias != nullptr) {
    check_cublas(cublasLtMatmulDescSetAttribute(&gemm.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &args.bias, sizeof(args.bias)),
                 "cublasLtMatmulDescSetAttribute(BIAS_POINTER)");
  }
  const bool adds = args.residual.data != nullptr;
  const float one = 1.0f, beta = adds ? 1.0f : 0.0f;
  const void* residual = adds ? args.residual.data : args.out.data;
  const cublasStatus_t status = cublasLtMatmul(
      launcher.cublas_lt, &gemm.op, &one, args.weight.data, &gemm.weight, args.in.data, &gemm.in,
      &beta, residual, &gemm.residual, args.out.data, &gemm.out, &algo, launcher.workspace,
      launcher.workspace_bytes, launcher.stream);
  REFRAIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLtMatmul of {} failed: {}",
                text_of(key_of(args)), cublasLtGetStatusString(status));
}

}  // namespace refrain::kernels
