// lm_head of 49 to 128 and 225 to 256 rows, bfloat16, that finds the greatest logit of each row
// where it has them: plainly greedy rows are sampled from what the blocks found, and the logits are
// written only where a row asks for more. Of 256 rows they are a quarter of the bytes of weights of
// 2048 columns, and were written and read.

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/cuda/linear_wide.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

template <int kCols>
struct StoreBest {
  const wide::WideLinear& args;
  int32_t row;
  bool writes;
  // Of rows `row` and `row` + 8, of even and odd columns.
  float logit[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
  int32_t token[2][2] = {{-1, -1}, {-1, -1}};

  __device__ StoreBest(const wide::WideLinear& args, int32_t row)
      : args(args), row(row), writes(*args.best.live_logits > 0) {}

  // Tokens come in ascending order: of equal logits the first is kept, and NaN never is.
  __device__ void take(const float (&sum)[kCols / 2], int32_t of) {
    const int32_t first = of * kCols + static_cast<int32_t>(threadIdx.x % 4) * 2;
    const bool whole = (of + 1) * kCols <= args.best.num_tokens;
#pragma unroll
    for (int g = 0; g < kCols / 8; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = sum[g * 4 + h * 2 + i];
          const int32_t col = first + g * 8 + i;
          const bool better = x > logit[h][i] && (whole || col < args.best.num_tokens);
          logit[h][i] = better ? x : logit[h][i];
          token[h][i] = better ? col : token[h][i];
        }
      }
    }
    if (writes) write(sum, first);
  }

  // A quad of lanes has a row.
  __device__ void end(uint32_t block, uint32_t blocks) {
    const int32_t live = live_rows(args.rows);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto look = [&](float other, int32_t of_other) {
        const bool better = other > logit[h][0] ||
                            (other == logit[h][0] && of_other >= 0 && of_other < token[h][0]);
        logit[h][0] = better ? other : logit[h][0];
        token[h][0] = better ? of_other : token[h][0];
      };
      look(logit[h][1], token[h][1]);
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        const float other = __shfl_xor_sync(~0u, logit[h][0], offset);
        look(other, __shfl_xor_sync(~0u, token[h][0], offset));
      }
      if (row + h * 8 >= live) continue;
      auto* found = reinterpret_cast<float2*>(args.best.found) + (row + h * 8) * args.best.parts;
      for (uint32_t part = block + threadIdx.x % 4 * blocks;
           part < static_cast<uint32_t>(args.best.parts); part += 4 * blocks) {
        const bool mine = part == block && token[h][0] >= 0;
        found[part] =
            mine ? make_float2(logit[h][0], static_cast<float>(args.best.first_token + token[h][0]))
                 : make_float2(-INFINITY, -1.0f);
      }
    }
  }

 private:
  __device__ void write(const float (&sum)[kCols / 2], int32_t first) const {
    auto* out = static_cast<float*>(args.out.data);
    const int32_t live = live_rows(args.rows);
#pragma unroll
    for (int g = 0; g < kCols / 8; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (row + h * 8 >= live || first + g * 8 >= args.cols) continue;
        *reinterpret_cast<float2*>(out + (row + h * 8) * args.out.stride + first + g * 8) =
            make_float2(sum[g * 4 + h * 2], sum[g * 4 + h * 2 + 1]);
      }
    }
  }
};

template <int kCols>
void run(StreamRef stream, const FusedLinearArgs& fused) {
  wide::WideLinear args{};
  args.cols = fused.linear.weight.n;
  args.best = {fused.best, fused.best_parts, fused.live_logits,
               static_cast<int32_t>(fused.first_token), static_cast<int32_t>(fused.num_tokens)};
  wide::run_rows<kCols, StoreBest<kCols>>(stream, "linear_best", fused.linear, args,
                                          wide::weight_boxes(fused.linear.weight, 8, 16, kCols));
}

}  // namespace

bool can_linear_best(const LinearArgs& args) {
  return args.rows.padded <= kSiluRows && is_wide_bfloat16(args) && args.weight.k % kAtom == 0 &&
         args.weight.n % 16 == 0 && args.out.dtype == DType::kFloat32 && args.out.stride % 2 == 0 &&
         args.bias == nullptr && args.residual.data == nullptr;
}

void linear_best(StreamRef stream, const FusedLinearArgs& args) {
  wide::with_tile_size<128, 160, 192, 224, 256>(
      stream, args.linear, [&](auto cols) { run<decltype(cols)::value>(stream, args); });
}

}  // namespace refrain::kernels
