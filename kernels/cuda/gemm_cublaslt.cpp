#include "kernels/cuda/gemm_cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <iterator>
#include <map>
#include <optional>

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

// The most rows of the range that `rows` lies in: one algorithm a range, so that no request waits
// for one to be chosen and loaded because of the length of its prompt.
constexpr int32_t top_of_range(int32_t rows) {
  const auto up_to = [rows](int32_t step) { return (rows + step - 1) / step * step; };
  return up_to(rows <= 64 ? 16 : rows <= 512 ? 32 : rows <= 2048 ? 128 : 512);
}

// cuBLASLt is column-major: out is [n, m], the weight [k, n] transposed, the input [k, m].
struct Gemm {
  cublasLtMatmulDescOpaque_t op{};
  cublasLtMatrixLayoutOpaque_t weight{}, in{}, residual{}, out{};
  std::optional<cublasLtMatmulAlgo_t> algo;  // none: cuBLASLt has none
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

// Where the first algorithm that cuBLASLt proposes is not its fastest: bfloat16 weights [n, k],
// measured on H200 with cuBLASLt 13.0 for most_m rows and used from more than half of that on.
struct Measured {
  int64_t n, k, most_m;
  int32_t tile, splits;
  uint16_t cluster;
};
constexpr Measured kMeasured[] = {
    {28672, 4096, 64, 18, 1, 4},
    {28672, 4096, 128, 165, 1, 3},  // 8B gate_up: 64.3 -> 60.5 us, 69.5 -> 64.9
    {4096, 4096, 256, 135, 1, 7},   // 8B o: 18.7 -> 16.3
    {4096, 14336, 64, 15, 2, 3},    // 8B down: 37.1 -> 35.8
    {128256, 4096, 16, 394, 1, 3},
    {128256, 4096, 32, 16, 1, 3},  // 8B lm_head: 258 -> 251, 271 -> 257
    {128256, 4096, 64, 196, 1, 3},
    {128256, 4096, 128, 184, 1, 3},  // 291 -> 263, 292 -> 281
    {128256, 4096, 256, 197, 1, 5},  // 378 -> 367
    {2048, 8192, 128, 18, 4, 5},
    {2048, 8192, 256, 20, 4, 3},  // 1B down: 16.6 -> 14.6, 20.7 -> 19.0
    {14336, 8192, 16, 183, 1, 4},
    {14336, 8192, 32, 13, 1, 4},  // 70B/4 gate_up: 63.2 -> 60.6, 61.3 -> 59.0
    {14336, 8192, 64, 164, 1, 3},
    {8192, 7168, 64, 27, 1, 4},  // 64.5 -> 59.2; down: 34.0 -> 32.1
};

bool is_measured(const GemmKey& key, const cublasLtMatmulAlgo_t& algo) {
  const auto read = [&algo](cublasLtMatmulAlgoConfigAttributes_t name, auto value) {
    size_t written = 0;
    check_cublas(cublasLtMatmulAlgoConfigGetAttribute(&algo, name, &value, sizeof(value), &written),
                 "cublasLtMatmulAlgoConfigGetAttribute");
    return value;
  };
  return std::any_of(std::begin(kMeasured), std::end(kMeasured), [&](const Measured& m) {
    return key.weight == DType::kBFloat16 && key.n == m.n && key.k == m.k && key.m <= m.most_m &&
           key.m > m.most_m / 2 && read(CUBLASLT_ALGO_CONFIG_TILE_ID, int32_t{0}) == m.tile &&
           read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{0}) == m.splits &&
           read(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{0}) == m.cluster;
  });
}

std::optional<cublasLtMatmulAlgo_t> choose_algorithm(const CudaLauncher& launcher,
                                                     const GemmKey& key, Gemm& gemm) {
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
  constexpr int kMost = 8;
  cublasLtMatmulHeuristicResult_t results[kMost] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      launcher.cublas_lt, &gemm.op, &gemm.weight, &gemm.in, &gemm.residual, &gemm.out, &preference,
      kMost, results, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || results[0].state != CUBLAS_STATUS_SUCCESS) return {};
  auto* const end = results + count;
  auto* const found = std::find_if(results, end, [&key](const auto& result) {
    return result.state == CUBLAS_STATUS_SUCCESS && is_measured(key, result.algo);
  });
  return found == end ? results[0].algo : found->algo;
}

bool takes(const CudaLauncher& launcher, Gemm& gemm, const cublasLtMatmulAlgo_t& algo) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(launcher.cublas_lt, &gemm.op, &gemm.weight, &gemm.in,
                                 &gemm.residual, &gemm.out, &algo,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= launcher.workspace_bytes;
}

}  // namespace

struct GemmPlans::Plans {
  std::map<GemmKey, Gemm> by_key;
  std::map<GemmKey, std::optional<cublasLtMatmulAlgo_t>> by_range;  // m: top_of_range()

  Gemm make(const CudaLauncher& launcher, const GemmKey& key) {
    Gemm gemm, top;
    make_descriptors(key, gemm);
    GemmKey range = key;
    range.m = top_of_range(static_cast<int32_t>(key.m));
    const auto [at, fresh] = by_range.try_emplace(range);
    if (fresh) {
      make_descriptors(range, top);
      at->second = choose_algorithm(launcher, range, top);
    }
    gemm.algo = at->second;
    if (gemm.algo && range.m != key.m && !takes(launcher, gemm, *gemm.algo)) {
      gemm.algo = choose_algorithm(launcher, key, gemm);
    }
    return gemm;
  }
};

GemmPlans::GemmPlans() : plans_(std::make_unique<Plans>()) {}
GemmPlans::~GemmPlans() = default;
size_t GemmPlans::size() const { return plans_->by_key.size(); }
size_t GemmPlans::algorithms() const { return plans_->by_range.size(); }

bool GemmPlans::run(StreamRef stream, const LinearArgs& args) {
  if (args.residual.data != nullptr && args.residual.dtype != args.out.dtype) return false;
  if (args.in.dtype != args.weight.dtype) return false;
  const CudaLauncher& launcher = kernels::launcher(stream);
  const GemmKey key = key_of(args);
  const auto [at, fresh] = plans_->by_key.try_emplace(key);
  Gemm& gemm = at->second;
  if (fresh) gemm = plans_->make(launcher, key);
  if (!gemm.algo) return false;
  if (key.bias) {
    check_cublas(cublasLtMatmulDescSetAttribute(&gemm.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &args.bias, sizeof(args.bias)),
                 "cublasLtMatmulDescSetAttribute(BIAS_POINTER)");
  }
  const float one = 1.0f, beta = key.residual ? 1.0f : 0.0f;
  const void* residual = key.residual ? args.residual.data : args.out.data;
  check_cublas(cublasLtMatmul(launcher.cublas_lt, &gemm.op, &one, args.weight.data, &gemm.weight,
                              args.in.data, &gemm.in, &beta, residual, &gemm.residual,
                              args.out.data, &gemm.out, &*gemm.algo, launcher.workspace,
                              launcher.workspace_bytes, launcher.stream),
               "cublasLtMatmul");
  return true;
}

void GemmPlans::note_simple(const LinearArgs& args) {
  // float32 rows are for comparisons, not for speed.
  if (args.in.dtype == DType::kFloat32) return;
  ++simple_launches_;
  std::string kind =
      fmt::format("linear [{}, {}] {}, rows of {}", args.weight.n, args.weight.k,
                  refrain::to_string(args.weight.dtype), refrain::to_string(args.in.dtype));
  if (const auto [at, fresh] = simple_kinds_.insert(std::move(kind)); fresh) {
    log::warn(
        "{} runs the simple kernel: neither kernels for few rows nor cuBLASLt take it (M = {})",
        *at, args.rows.padded);
  }
}

int32_t planned_rows(int32_t rows) { return top_of_range(rows); }

void linear(StreamRef stream, const LinearArgs& args) {
  if (can_fuse_few(args)) {
    FusedLinearArgs fused;
    fused.linear = args;
    return fused_linear(stream, fused);
  }
  if (can_cluster(args)) return linear_cluster(stream, args, false);
  GemmPlans* plans = launcher(stream).gemm_plans;
  if (plans != nullptr && plans->run(stream, args)) return;
  if (plans != nullptr) plans->note_simple(args);
  linear_simple(stream, args);
}

void check_cublas(cublasStatus_t status, const char* call) {
  REFRAIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call,
                cublasLtGetStatusString(status));
}

}  // namespace refrain::kernels
