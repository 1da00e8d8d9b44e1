// LoRA's two products row by row, for any type and alignment.
// What counts where rows are few is how soon a kernel ends: all that it reads is on its way at
// once. Of many rows in bfloat16 lora_mma.cu takes those of an adapter together.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kShrinkThreads = 256;
constexpr int kShrinkOutputs = 4;
constexpr int kSpreadOutputs = 4;

struct SpreadArgs {
  Matrix in;
  const int32_t* adapter;
  const void* a;
  LoraPlaces places;
  __nv_bfloat16* out;
  int32_t cols;
  Rows rows;
};

// Of row's eight columns from `col` on, as load8 reads them; `packed`: bfloat16, every row wide and
// a multiple of eight columns, so that loads of several can be on their way at once.
template <bool packed>
__device__ inline void load_columns(const Matrix& m, bool wide, int64_t row, int64_t col, int64_t n,
                                    float (&x)[8]) {
  if constexpr (packed) {
    unpack8(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(m.data) +
                                            row * m.stride + col),
            x);
  } else {
    load8(m, wide, row, col, n, x);
  }
}

__host__ __device__ constexpr int32_t blocks_of(int32_t max_rank) {
  return (max_rank + kShrinkOutputs - 1) / kShrinkOutputs;
}

// A block kShrinkOutputs outputs of a part's row; a thread takes every kShrinkThreads-th eight
// columns.
template <bool packed>
__global__ void __launch_bounds__(kShrinkThreads) shrink_kernel(LoraShrinkArgs args, bool wide) {
  __shared__ float sums[kShrinkThreads / 32][kShrinkOutputs];
  let_successor_start();
  wait_for_predecessor();
  const LoraPlaces& places = args.places;
  const int32_t width = places.parts * places.max_rank;
  const int32_t blocks = blocks_of(places.max_rank),
                part = static_cast<int32_t>(blockIdx.x) / blocks;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) % blocks * kShrinkOutputs;
  const int32_t first = part * places.max_rank + begin;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const Matrix a{const_cast<void*>(args.a), args.in.dtype, args.cols};
  for_each_row(args.rows, [&](int64_t row) {
    const int64_t place = args.adapter[row];
    if (place < 0) return;
    // Those beyond the part's rank are computed from its last line and not written.
    const int32_t outputs = places.ranks[place * places.rank_stride + part] - begin;
    if (outputs <= 0) return;
    float sum[kShrinkOutputs] = {};
#pragma unroll 2
    for (int64_t col = int64_t{threadIdx.x} * 8; col < args.cols; col += kShrinkThreads * 8) {
      float x[8];
      load_columns<packed>(args.in, wide, row, col, args.cols - col, x);
#pragma unroll
      for (int o = 0; o < kShrinkOutputs; ++o) {
        float y[8];
        const int64_t line = place * width + first + min(o, outputs - 1);
        load_columns<packed>(a, wide, line, col, args.cols - col, y);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[o] += x[i] * y[i];
      }
    }
#pragma unroll
    for (int o = 0; o < kShrinkOutputs; ++o) {
      sum[o] = warp_sum(sum[o]);
      if (lane == 0) sums[warp][o] = sum[o];
    }
    __syncthreads();
    const auto o = static_cast<int32_t>(threadIdx.x);
    if (o < min(kShrinkOutputs, outputs)) {
      float whole = 0;
#pragma unroll
      for (auto& of_warp : sums) whole += of_warp[o];
      args.out[row * width + first + o] = whole;
    }
    __syncthreads();
  });
}

// Of lora_linear: a block kSpreadOutputs outputs of a part's row, with zeros for the other places.
// lora_rows has ended before it starts (P-7), so its lines of a come before the wait.
template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32) spread_kernel(SpreadArgs args) {
  __shared__ float sums[kWarps][kSpreadOutputs];
  const LoraPlaces& places = args.places;
  const auto row = static_cast<int64_t>(blockIdx.y);
  const int32_t groups = places.max_rank / kSpreadOutputs;
  const int32_t part = static_cast<int32_t>(blockIdx.x) / groups;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) % groups * kSpreadOutputs;
  const auto thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  let_successor_start();
  const bool live = row < live_rows(args.rows);
  const int32_t place = live ? args.adapter[row] : -1;
  const int64_t line = (int64_t{max(place, 0)} * places.parts + part) * places.max_rank + begin;
  const auto* lines = static_cast<const __nv_bfloat16*>(args.a) + line * args.cols;
  if (place >= 0 && thread < kSpreadOutputs) {
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(lines + int64_t{thread} * args.cols),
        "r"(args.cols * 2)
        : "memory");
  }
  const int32_t rank =
      place < 0 ? 0 : places.ranks[int64_t{place} * places.rank_stride + part] - begin;
  wait_for_predecessor();
  if (!live) return;
  const auto* x = static_cast<const __nv_bfloat16*>(args.in.data) + row * args.in.stride;
  float sum[kSpreadOutputs] = {};
  if (rank > 0) {
#pragma unroll 4
    for (int32_t col = thread * 8; col < args.cols; col += kWarps * 32 * 8) {
      float in[8];
      unpack8(*reinterpret_cast<const uint4*>(x + col), in);
#pragma unroll
      for (int o = 0; o < kSpreadOutputs; ++o) {
        float of_a[8];
        unpack8(*reinterpret_cast<const uint4*>(lines + int64_t{o} * args.cols + col), of_a);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[o] += in[i] * of_a[i];
      }
    }
  }
#pragma unroll
  for (int o = 0; o < kSpreadOutputs; ++o) {
    sum[o] = warp_sum(sum[o]);
    if (lane == 0) sums[warp][o] = sum[o];
  }
  __syncthreads();
  // A thread a place's outputs: the row's own, or zeros.
  for (int32_t to = thread; to < places.count; to += kWarps * 32) {
    float whole[kSpreadOutputs] = {};
    if (to == place) {
#pragma unroll
      for (int o = 0; o < kSpreadOutputs; ++o) {
        for (const auto& of_warp : sums) whole[o] += of_warp[o];
        if (o >= rank) whole[o] = 0;
      }
    }
    __nv_bfloat16* out =
        args.out + ((row * places.parts + part) * places.count + to) * places.max_rank + begin;
    *reinterpret_cast<uint2*>(out) =
        make_uint2(pack_halves(whole[0], whole[1]), pack_halves(whole[2], whole[3]));
  }
}

// A thread one of a row's outputs.
__global__ void __launch_bounds__(kThreads) embed_kernel(LoraEmbedArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for_each_row(args.rows, [&](int64_t row) {
    const int64_t place = args.adapter[row];
    if (place < 0) return;
    const int64_t rank = args.places.ranks[place * args.places.rank_stride];
    if (j >= rank) return;
    const int32_t id = args.ids[row];
    const bool here = id >= args.vocab_begin && id < args.vocab_end;
    const int64_t at =
        place * args.vocab_rows * args.places.max_rank + (id - args.vocab_begin) * rank + j;
    args.out[row * args.places.max_rank + j] = here ? load_element(args.a, args.dtype, at) : 0.0f;
  });
}

// Of a block. The head's values are float32: many columns, which most adapters leave alone.
constexpr int64_t expand_cols(bool packed) { return packed ? kThreads : kThreads * 32; }

// A thread one column after the other; it reads what the place has there eight ranks at a time.
template <bool packed>
__global__ void __launch_bounds__(kThreads)
    expand_kernel(const __grid_constant__ LoraExpandArgs args, bool wide) {
  let_successor_start();
  wait_for_predecessor();
  const LoraPlaces& places = args.places;
  const Matrix b{const_cast<void*>(args.b), args.out.dtype,
                 int64_t{places.count} * places.max_rank};
  const int64_t begin = blockIdx.x * expand_cols(packed);
  const int64_t end = min(int64_t{args.part_end[places.parts - 1]}, begin + expand_cols(packed));
  for_each_row(args.rows, [&](int64_t row) {
    const int64_t place = args.adapter[row];
    if (place < 0) return;
    const int32_t* ranks = places.ranks + place * places.rank_stride;
    int32_t part = 0;
    if (places.parts == 1 && ranks[part] == 0) return;
    for (int64_t col = begin + threadIdx.x; col < end; col += kThreads) {
      while (col >= args.part_end[part]) ++part;
      const int32_t rank = ranks[part];
      if (rank == 0) continue;
      const float* in = args.in + (row * places.parts + part) * places.max_rank;
      float sum = 0;
#pragma unroll 2
      for (int32_t j = 0; j < rank; j += 8) {
        float y[8];
        load_columns<packed>(b, wide, col, place * places.max_rank + j, rank - j, y);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (j + i < rank) sum += in[j + i] * y[i];
        }
      }
      const int64_t at = row * args.out.stride + col;
      store_element(args.out.data, args.out.dtype, at,
                    load_element(args.out.data, args.out.dtype, at) + sum);
    }
  });
}

bool is_packed(const Matrix& m, bool wide, int64_t cols) {
  return wide && m.dtype == DType::kBFloat16 && cols % 8 == 0;
}

}  // namespace

void lora_shrink(StreamRef stream, const LoraShrinkArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.places.parts * blocks_of(args.places.max_rank)),
                    grid_y(args.rows.padded));
  shape.threads = kShrinkThreads;
  const Matrix a{const_cast<void*>(args.a), args.in.dtype, args.cols};
  const bool wide = rows_are_wide(args.in) && rows_are_wide(a);
  if (args.rows.padded > kLoraFewRows && is_packed(args.in, wide, args.cols))
    return lora_shrink_mma(stream, args);
  if (is_packed(args.in, wide, args.cols)) {
    launch<&shrink_kernel<true>>(stream, "lora_shrink", shape, args, wide);
  } else {
    launch<&shrink_kernel<false>>(stream, "lora_shrink", shape, args, wide);
  }
}

void lora_shrink_spread(StreamRef stream, const LoraLinearArgs& args) {
  const LinearArgs& linear = args.linear;
  const SpreadArgs spread{linear.in,
                          args.adapter,
                          args.a,
                          args.places,
                          static_cast<__nv_bfloat16*>(args.shrunk),
                          static_cast<int32_t>(linear.weight.k),
                          linear.rows};
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(args.places.parts * args.places.max_rank / kSpreadOutputs),
           static_cast<unsigned>(linear.rows.padded));
  // All that a thread reads of a line is on its way at once.
  if (linear.weight.k > 8192) {
    shape.threads = 512;
    return launch<&spread_kernel<16>>(stream, "lora_linear", shape, spread);
  }
  shape.threads = 256;
  launch<&spread_kernel<8>>(stream, "lora_linear", shape, spread);
}

void lora_embed(StreamRef stream, const LoraEmbedArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.places.max_rank, kThreads)),
                    grid_y(args.rows.padded));
  shape.threads = kThreads;
  launch<&embed_kernel>(stream, "lora_embed", shape, args);
}

void lora_expand(StreamRef stream, const LoraExpandArgs& args) {
  const LoraPlaces& places = args.places;
  const int32_t cols = args.part_end[places.parts - 1];
  const Matrix b{const_cast<void*>(args.b), args.out.dtype,
                 int64_t{places.count} * places.max_rank};
  const bool wide = rows_are_wide(b) && places.max_rank % 8 == 0;
  const bool packed = is_packed(b, wide, places.max_rank);
  bool eights = rows_are_wide(args.out);
  for (int part = 0; part < places.parts; ++part) eights = eights && args.part_end[part] % 8 == 0;
  if (args.rows.padded > kLoraFewRows && packed && eights) return lora_expand_mma(stream, args);
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(ceil_div(cols, expand_cols(packed))), grid_y(args.rows.padded));
  shape.threads = kThreads;
  if (packed) {
    launch<&expand_kernel<true>>(stream, "lora_expand", shape, args, wide);
  } else {
    launch<&expand_kernel<false>>(stream, "lora_expand", shape, args, wide);
  }
}

}  // namespace refrain::kernels
