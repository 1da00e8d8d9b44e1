#include "kernels/cuda/gemm_cublaslt.h"

#include <fmt/format.h>

#include <compare>
#include <map>

#include "kernels/cuda/launcher.h"
#include "kernels/cuda/ops.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain::kernels {
namespace {

// What an algorithm depends on. Alignments are of the address, in bytes, 256 at most.
struct GemmKey {
  int64_t m, n, k, in_stride, out_stride, residual_stride;
  DType in, weight, out;
  bool bias, residual;
  uint32_t in_align, weight_align, out_align, residual_align;
  auto operator<=>(const GemmKey&) const = default;
};

// Of the address of every row: cuBLASLt takes the first row's for all.
uint32_t alignment(const void* address, int64_t stride, DType dtype) {
  const auto bits = reinterpret_cast<uintptr_t>(address) |
                    static_cast<uintptr_t>(stride * static_cast<int64_t>(size_of(dtype)));
  uint32_t align = 256;
  while (bits % align != 0) align /= 2;
  return align;
}

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

cudaDataType_t type_of(DType dtype) { return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

// cuBLASLt is column-major: out is [n, m], the weight [k, n] transposed, the input [k, m].
struct Gemm {
  cublasLtMatmulDescOpaque_t op{};
  cublasLtMatrixLayoutOpaque_t weight{}, in{}, residual{}, out{};
  cublasLtMatmulAlgo_t algo{};
  bool found = false;
};

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

void choose_algorithm(const CudaLauncher& launcher, const GemmKey& key, Gemm& gemm) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto set = [&preference](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{launcher.workspace_bytes});
  // Parts of a split sum are added in float32, never in the output's type.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.in_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      key.residual ? key.residual_align : key.out_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(launcher.cublas_lt, &gemm.op, &gemm.weight, &gemm.in,
                                     &gemm.residual, &gemm.out, &preference, 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return;
  gemm.algo = result.algo;
  gemm.found = true;
}

}  // namespace

struct GemmPlans::Plans {
  std::map<GemmKey, Gemm> by_key;
};

GemmPlans::GemmPlans() : plans_(std::make_unique<Plans>()) {}
GemmPlans::~GemmPlans() = default;
size_t GemmPlans::size() const { return plans_->by_key.size(); }

bool GemmPlans::run(StreamRef stream, const LinearArgs& args) {
  if (args.residual.data != nullptr && args.residual.dtype != args.out.dtype) return false;
  if (args.in.dtype != args.weight.dtype) return false;
  const CudaLauncher& launcher = kernels::launcher(stream);
  const GemmKey key = key_of(args);
  const auto [at, fresh] = plans_->by_key.try_emplace(key);
  Gemm& gemm = at->second;
  if (fresh) {
    make_descriptors(key, gemm);
    choose_algorithm(launcher, key, gemm);
  }
  if (!gemm.found) return false;
  if (key.bias) {
    check_cublas(cublasLtMatmulDescSetAttribute(&gemm.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &args.bias, sizeof(args.bias)),
                 "cublasLtMatmulDescSetAttribute(BIAS_POINTER)");
  }
  const float one = 1.0f, beta = key.residual ? 1.0f : 0.0f;
  const void* residual = key.residual ? args.residual.data : args.out.data;
  check_cublas(cublasLtMatmul(launcher.cublas_lt, &gemm.op, &one, args.weight.data, &gemm.weight,
                              args.in.data, &gemm.in, &beta, residual, &gemm.residual,
                              args.out.data, &gemm.out, &gemm.algo, launcher.workspace,
                              launcher.workspace_bytes, launcher.stream),
               "cublasLtMatmul");
  return true;
}

void GemmPlans::note_simple(const LinearArgs& args) {
  ++simple_launches_;
  std::string kind =
      fmt::format("linear [{}, {}] {}, rows of {}", args.weight.n, args.weight.k,
                  refrain::to_string(args.weight.dtype), refrain::to_string(args.in.dtype));
  if (const auto [at, fresh] = simple_kinds_.insert(std::move(kind)); fresh) {
    log::warn("{} runs the simple kernel: neither GEMV nor cuBLASLt takes it (M = {})", *at,
              args.rows.padded);
  }
}

void linear(StreamRef stream, const LinearArgs& args) {
  if (can_gemv(args)) return linear_gemv(stream, args);
  GemmPlans* plans = launcher(stream).gemm_plans;
  if (plans != nullptr && args.rows.padded > 1 && plans->run(stream, args)) return;
  if (plans != nullptr) plans->note_simple(args);
  linear_simple(stream, args);
}

void check_cublas(cublasStatus_t status, const char* call) {
  REFRAIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call,
                cublasLtGetStatusString(status));
}

}  // namespace refrain::kernels
