#include "kernels/cuda/gemm_cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "kernels/cuda/gemm_choices.h"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/cuda/invariant.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/ops.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain::kernels {
namespace {

using Algo = cublasLtMatmulAlgo_t;
using std::chrono::steady_clock;

// The most rows of the range that `rows` lies in. Rows that no warm-up brought have the algorithm
// of their range, so that no request waits for one to be chosen and loaded because of the length of
// its prompt. An algorithm is good for its own rows: those of 320 and 896 take 256 and 664 us for
// 8B's four linears of 264 and 800 rows, the first proposals for these 221 and 540 (H100).
constexpr int32_t top_of_range(int32_t rows) {
  constexpr std::pair<int32_t, int32_t> kSteps[] = {{64, 16}, {512, 32}, {1024, 64}, {2048, 128}};
  for (const auto& [up_to, step] : kSteps)
    if (rows <= up_to) return (rows + step - 1) / step * step;
  return (rows + 511) / 512 * 512;
}

// That the algorithm of all rows is chosen for, where there is one: decodes and prompts have it.
constexpr int64_t kInvariantRows = 128;

// Of a stream, all shapes together; the next start goes on with those that are left.
constexpr auto kMostTiming = std::chrono::milliseconds(150);
constexpr double kFaster = 0.98;  // than the best before it, in time: less is noise
constexpr double kSlow = 1.05;    // than other numbers of rows let expect
// Multiplications of a linear that is timed, some 40 us: the proposals of smaller ones differ by
// little, and each costs milliseconds to load.
constexpr int64_t kWorthTiming = int64_t{1} << 34;

class Timer {
 public:
  explicit Timer(const CudaLauncher& launcher) : launcher_(launcher) {
    for (cudaEvent_t* event : {&begin_, &end_})
      check_cuda(cudaEventCreate(event), "cudaEventCreate");
  }
  ~Timer() {
    for (cudaEvent_t event : {begin_, end_}) cudaEventDestroy(event);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Nanoseconds, the better of two runs with weights that are in no cache.
  int64_t time(Gemm& gemm, const Algo& algo, const LinearArgs& args) const {
    float best = std::numeric_limits<float>::max();
    for (int run = 0; run < 2; ++run) {
      check_cuda(
          cudaMemsetAsync(launcher_.workspace, 0, launcher_.workspace_bytes, launcher_.stream),
          "cudaMemsetAsync");
      check_cuda(cudaEventRecord(begin_, launcher_.stream), "cudaEventRecord");
      multiply(launcher_, gemm, algo, args);
      check_cuda(cudaEventRecord(end_, launcher_.stream), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
      float took = 0;
      check_cuda(cudaEventElapsedTime(&took, begin_, end_), "cudaEventElapsedTime");
      best = std::min(best, took);
    }
    return static_cast<int64_t>(best * 1e6f);
  }

 private:
  const CudaLauncher& launcher_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

struct GemmPlans::Plans {
  std::map<GemmKey, Gemm> by_key;
  std::map<GemmKey, std::optional<Algo>> chosen;  // for the m of a warm-up, else for top_of_range()
  steady_clock::duration timing{};
  int64_t timed = 0;                                       // shapes
  std::map<GemmKey, std::map<int64_t, int64_t>> measured;  // ns by m, of a key with m = 0

  Gemm make(const CudaLauncher& launcher, const GemmKey& key, const LinearArgs& args) {
    Gemm gemm;
    make_descriptors(key, gemm);
    GemmKey like = key;  // whose algorithm it has
    if (key.invariant) {
      like.m = kInvariantRows;
    } else if (!launcher.tunes) {
      like.m = top_of_range(static_cast<int32_t>(key.m));
    }
    const auto [at, fresh] = chosen.try_emplace(like);
    if (fresh)
      at->second = key.invariant ? in_one_sequence(launcher, like) : choose(launcher, like, args);
    gemm.algo = at->second;
    if (launcher.tunes && !key.invariant) {
      like.m = top_of_range(static_cast<int32_t>(key.m));
      chosen.try_emplace(like, gemm.algo);  // unless its most rows come before
    }
    if (key.invariant) {
      REFRAIN_CHECK(!gemm.algo || takes(launcher, gemm, *gemm.algo),
                    "batch_invariant: cuBLASLt's algorithm of a linear [{}, {}] does not take {} "
                    "rows",
                    key.n, key.k, key.m);
      return gemm;
    }
    // It may have been chosen for other rows of the range.
    if (gemm.algo && !takes(launcher, gemm, *gemm.algo))
      gemm.algo = first(propose(launcher, key, gemm));
    return gemm;
  }

 private:
  static std::optional<Algo> first(const std::vector<Algo>& proposals) {
    return proposals.empty() ? std::nullopt : std::optional(proposals.front());
  }

  static std::optional<Algo> in_one_sequence(const CudaLauncher& launcher, const GemmKey& key) {
    Gemm gemm;
    make_descriptors(key, gemm);
    for (const Algo& algo : propose(launcher, key, gemm)) {
      int32_t splits = 0;
      check_cublas(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                        &splits, sizeof(splits), nullptr),
                   "cublasLtMatmulAlgoConfigGetAttribute(SPLITK_NUM)");
      if (splits <= 1) return algo;
    }
    return std::nullopt;
  }

  // `args` has the rows of `key` where launches may be timed.
  std::optional<Algo> choose(const CudaLauncher& launcher, const GemmKey& key,
                             const LinearArgs& args) {
    Gemm gemm;
    make_descriptors(key, gemm);
    GemmChoices* choices = launcher.gemm_choices;
    if (choices != nullptr) {
      const auto known = choices->find(text_of(key));
      if (known && takes(launcher, gemm, known->algo)) {
        times_of(key)[key.m] = known->ns;
        return known->algo;
      }
    }
    const std::vector<Algo> proposals = propose(launcher, key, gemm);
    const bool times = launcher.tunes && timing < kMostTiming && key.weight == DType::kBFloat16 &&
                       key.m * key.n * key.k >= kWorthTiming;
    if (!times || proposals.empty()) return first(proposals);
    const GemmChoice best = fastest(launcher, key, proposals, gemm, args);
    if (choices != nullptr) choices->add(text_of(key), best);
    return best.algo;
  }

  // The first proposal, unless it is slow: then the fastest.
  GemmChoice fastest(const CudaLauncher& launcher, const GemmKey& key,
                     const std::vector<Algo>& proposals, Gemm& gemm, const LinearArgs& args) {
    const auto begun = steady_clock::now();
    const Timer timer(launcher);
    GemmChoice best{proposals.front(), timer.time(gemm, proposals.front(), args)};
    if (static_cast<double>(best.ns) > kSlow * expected_ns(key)) {
      for (const Algo& algo : std::span(proposals).subspan(1)) {
        const int64_t ns = timer.time(gemm, algo, args);
        if (static_cast<double>(ns) < kFaster * static_cast<double>(best.ns)) best = {algo, ns};
      }
    }
    times_of(key)[key.m] = best.ns;
    timing += steady_clock::now() - begun;
    ++timed;
    return best;
  }

  std::map<int64_t, int64_t>& times_of(GemmKey key) {
    key.m = 0;
    return measured[key];
  }
  // What more rows take is enough, and so is what fewer take, in proportion; 0: none are known.
  double expected_ns(const GemmKey& key) {
    double least = 0;
    for (const auto& [rows, ns] : times_of(key)) {
      const double scale = std::max(1.0, static_cast<double>(key.m) / static_cast<double>(rows));
      const double here = scale * static_cast<double>(ns);
      if (least == 0 || here < least) least = here;
    }
    return least;
  }
};

GemmPlans::GemmPlans() : plans_(std::make_unique<Plans>()) {}
GemmPlans::~GemmPlans() = default;
size_t GemmPlans::size() const { return plans_->by_key.size(); }
size_t GemmPlans::algorithms() const { return plans_->chosen.size(); }
int64_t GemmPlans::timed() const { return plans_->timed; }

bool GemmPlans::run(StreamRef stream, const LinearArgs& args, bool invariant) {
  if (args.residual.data != nullptr && args.residual.dtype != args.out.dtype) return false;
  if (args.in.dtype != args.weight.dtype) return false;
  const CudaLauncher& launcher = kernels::launcher(stream);
  GemmKey key = key_of(args);
  key.invariant = invariant;
  const auto [at, fresh] = plans_->by_key.try_emplace(key);
  Gemm& gemm = at->second;
  if (fresh) gemm = plans_->make(launcher, key, args);
  if (!gemm.algo) return false;
  multiply(launcher, gemm, *gemm.algo, args);
  return true;
}

void GemmPlans::note_simple(const LinearArgs& args) {
  // float32 rows are for comparisons, not for speed.
  if (args.in.dtype == DType::kFloat32) return;
  std::string kind =
      fmt::format("linear [{}, {}] {}, rows of {}", args.weight.n, args.weight.k,
                  refrain::to_string(args.weight.dtype), refrain::to_string(args.in.dtype));
  if (const auto [at, fresh] = simple_kinds_.insert(std::move(kind)); fresh) {
    log::warn(
        "{} runs the simple kernel: neither kernels for few rows nor cuBLASLt take it (M = {})",
        *at, args.rows.padded);
  }
}

namespace {

// By cuBLASLt, else by the simple kernel.
void run_planned(StreamRef stream, const LinearArgs& args, bool invariant) {
  GemmPlans* plans = launcher(stream).gemm_plans;
  if (plans != nullptr && plans->run(stream, args, invariant)) return;
  if (plans != nullptr) plans->note_simple(args);
  linear_simple(stream, args);
}

}  // namespace

int32_t planned_rows(int32_t rows) { return top_of_range(rows); }

void linear(StreamRef stream, const LinearArgs& args) {
  if (can_fuse_few(args) || can_cluster(args)) {
    FusedLinearArgs fused;
    fused.linear = args;
    return fused_linear(stream, fused);
  }
  run_planned(stream, args, false);
}

void invariant_linear(StreamRef stream, const LinearArgs& args) { run_planned(stream, args, true); }

void check_cublas(cublasStatus_t status, const char* call) {
  REFRAIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call,
                cublasLtGetStatusString(status));
}

}  // namespace refrain::kernels
