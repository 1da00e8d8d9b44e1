// linear with SiLU·mul for 81 to 128 and 225 to 256 rows, bfloat16: as fast as reading the weights
// once, nearly, and the two halves of the result are never written. A tile has eight rows of gate
// and the eight of up that belong to them in turns, so that a lane has both factors of an output.
// How many rows of the weight a tile has follows from how evenly they spread over the
// multiprocessors: 224 of 8B's gate_up are one tile each.

#include "kernels/cuda/linear_wide.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

template <int kCols>
struct StoreSilu {
  const wide::WideLinear& args;
  int32_t row, live;

  __device__ StoreSilu(const wide::WideLinear& args, int32_t row)
      : args(args), row(row), live(live_rows(args.rows)) {}

  __device__ void take(const float (&sum)[kCols / 2], int32_t of) const {
    auto* out = static_cast<__nv_bfloat16*>(args.out.data);
#pragma unroll
    for (int g = 0; g < kCols / 16; ++g) {  // eight of gate, eight of up
      const int64_t col = int64_t{of} * (kCols / 2) + g * 8 + threadIdx.x % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float *gate = sum + g * 8 + h * 2, *up = gate + 4;
        if (row + h * 8 >= live || col >= args.cols) continue;
        *reinterpret_cast<uint32_t*>(out + (row + h * 8) * args.out.stride + col) =
            pack_halves(silu(gate[0]) * up[0], silu(gate[1]) * up[1]);
      }
    }
  }
  __device__ void end(uint32_t /*block*/, uint32_t /*blocks*/) const {}
};

// Gate and up in turns.
template <int kCols>
void run(StreamRef stream, const LinearArgs& linear) {
  wide::WideLinear args{};
  args.cols = linear.weight.n / 2;
  wide::run_rows<kCols, StoreSilu<kCols>>(stream, "linear_silu", linear, args,
                                          wide::weight_boxes(linear.weight, args.cols, 8, kCols));
}

}  // namespace

bool fuses_silu(int32_t rows) {
  // Two blocks' 256 rows take their time however many there are.
  return rows <= wide::kTileRows || (rows > wide::kTileRows * 7 / 4 && rows <= kSiluRows);
}

bool can_linear_silu(const LinearArgs& args) {
  return args.rows.padded <= kSiluRows && is_wide_bfloat16(args) && args.weight.k % kAtom == 0 &&
         args.weight.n % 32 == 0 && args.out.dtype == DType::kBFloat16 && args.out.stride % 2 == 0;
}

void linear_silu(StreamRef stream, const LinearArgs& args) {
  wide::with_tile_size<112, 128, 144, 160, 192, 224>(
      stream, args, [&](auto cols) { run<decltype(cols)::value>(stream, args); });
}

}  // namespace refrain::kernels
