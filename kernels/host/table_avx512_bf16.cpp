// AVX-512 with linear by bfloat16 dot products where both sides are bfloat16. Includes first: see
// table_avx512.cpp.
#include "kernels/host/simd/prelude.h"
#include "kernels/host/tables.h"

REFRAIN_BEGIN_TARGET("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/host/ops/linear.h"
#include "kernels/host/simd/avx512.h"

namespace refrain::kernels {
namespace {

// A type of its own, so that the linker never mixes these functions with table_avx512.cpp's.
struct DotSimd : host_avx512::Simd {};

// Two inputs a step: vdpbf16ps adds in[k+1] · w[k+1], then in[k] · w[k], to each of 16 outputs.
struct DotStep {
  using Simd = DotSimd;
  using X = BFloat16;
  using W = BFloat16;
  static constexpr int kInputs = 2;
  template <int kRows, int kTiles>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                  __m512 (&acc)[kRows][kTiles]) {
    __m512i weights[kTiles];
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) weights[t] = _mm512_loadu_si512(w + t * w_stride);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * x_stride, sizeof(pair));
      const __m512i in = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        acc[r][t] = _mm512_dpbf16_ps(acc[r][t], reinterpret_cast<__m512bh>(in),
                                     reinterpret_cast<__m512bh>(weights[t]));
      }
    }
  }
};

void linear_bf16(const LinearArgs& args, const Team& team) {
  const bool dot = args.in.dtype == DType::kBFloat16 && args.weight.dtype == DType::kBFloat16 &&
                   args.weight.layout == WeightLayout::kTiled16;
  if (!dot) return linear<DotSimd>(args, team);
  const LinearShare share = linear_share<DotSimd>(live_rows(args.rows), args.weight.n, team);
  const auto* x = static_cast<const BFloat16*>(args.in.data) + share.rows.begin * args.in.stride;
  run_share<DotStep>(args, x, args.in.stride, share.rows, share.tiles);
}

}  // namespace

KernelTable avx512_bf16_table() {
  KernelTable table = avx512_table();
  table.linear = [](StreamRef stream, const LinearArgs& args) {
    check_args(args);
    launch<&linear_bf16>(stream, args, "linear");
  };
  return table;
}

}  // namespace refrain::kernels

REFRAIN_END_TARGET
