// linear for up to 80 rows, bfloat16, with SiLU·mul, bias or residual after it: bound by reading
// the weights once. The weights are the 64 rows of a wgmma and the input its columns, so that few
// rows of input leave no part of the tensor cores' work empty.
//
// A cluster of blocks shares a tile of 64 outputs: each block multiplies its part of K, sends the
// other blocks what they add up, and adds up its own share of the tile's outputs, block after
// block, so that the order of the sum never changes. A block has a warp that draws weights and
// input through the copy engine, four that multiply, and four that add up and store while those go
// on with the next tile. One copy brings 128 columns: with 64 the warp that issues them is what
// limits the block. The ring is filled with weights before the wait for the previous kernel; a
// block asks for more than half of a multiprocessor's shared memory, as fused_linear.cu says why.
//
// H200, 32 rows, of the 4540 GB/s that reading reaches: 8B gate_up with SiLU·mul 92 %, down 88 %,
// o 75 %, qkv 74 % (docs/gpu-results.md).
//
// An RMSNorm before it whose weight is part of the linear's costs next to nothing: while the first
// tile's stages pass, the warps that add up sum the squares of each block's part of the input's
// rows, the blocks exchange those sums, and a tile's outputs are divided at the end. Of many rows
// those warps hold the stages up; a launch of its own takes 1.7 us a norm, but the linear's weights
// come in beside it.
//
// What a sum over ranks adds up goes from the warps that add up to all ranks' memory
// (kernels/core/op_args.h, PeerPackets), and the kernel of the sum takes it from there.
//
// lora_linear is the same kernel: what adapters add are further columns of K.

#include <algorithm>
#include <array>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/linear_cluster_tiles.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels {
namespace {

using namespace cluster_linear;

template <int kRows, bool kSilu, class Extra>
__global__ void __launch_bounds__(kThreads, 1)
    linear_cluster_kernel(const __grid_constant__ ClusterLinear args,
                          const __grid_constant__ Extra adapters,
                          const __grid_constant__ CUtensorMap weight,
                          const __grid_constant__ CUtensorMap input) {
  extern __shared__ unsigned char shared[];
  const TileBlock<kRows, kSilu, std::is_same_v<Extra, Adapters>> block(args, adapters,
                                                                       shared_address(shared));
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool draws = threadIdx.x == (kMultiplyWarps + kAddWarps) * 32;
  if (draws) {
    block.init_barriers();
    block.draw_ahead(&weight, &input);
  }
  __syncwarp();
  meet_cluster();
  wait_for_predecessor();
  if (!block.sends()) let_successor_start();
  if (warp < kMultiplyWarps) {
    block.multiply_tiles();
  } else if (warp < kMultiplyWarps + kAddWarps) {
    block.add_tiles();
  } else if (draws) {
    block.draw(&weight, &input);
  }
  __syncwarp();
  meet_cluster();  // nobody reads this block's shared memory any more
}

// How many clusters of each size from two on run at once.
template <auto kernel>
std::array<int, kMaxCluster + 1> clusters_at_once(size_t shared_bytes) {
  std::array<int, kMaxCluster + 1> most{};
  for (unsigned c = 2; c <= kMaxCluster; ++c) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {c, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(c);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check_cuda(cudaOccupancyMaxActiveClusters(&most[c], kernel, &config),
               "cudaOccupancyMaxActiveClusters");
  }
  return most;
}

// The cluster that ends first: stages of its busiest block, and what blocks beyond the second cost
// (a stage is some 0.3 us, a block 0.5).
// equal: each block adds up as many of a tile's outputs as the others, an even number.
int choose_cluster(const std::array<int, kMaxCluster + 1>& most, int tiles, int chunks,
                   bool equal) {
  int best = 0;
  double least = 0;
  for (int c = 2; c <= kMaxCluster; ++c) {
    if (most[static_cast<size_t>(c)] == 0 || c > chunks || (equal && kTile / 2 % c != 0)) continue;
    const int rounds = static_cast<int>(ceil_div(tiles, most[static_cast<size_t>(c)]));
    const double cost = static_cast<double>(rounds * ceil_div(chunks, c)) + 1.7 * (c - 2);
    if (best == 0 || cost < least) best = c, least = cost;
  }
  check_cuda(best == 0 ? cudaErrorInvalidConfiguration : cudaSuccess, "clusters for linear");
  return best;
}

// [rows, k] as atoms of 64 columns: one box is kAtoms atoms of box_rows rows.
CUtensorMap row_boxes(const void* data, int64_t rows, int64_t k, int64_t stride, int box_rows) {
  const TensorDim dims[] = {{kAtom, 1, kAtom},
                            {rows, stride, static_cast<uint32_t>(box_rows)},
                            {k / kAtom, kAtom, kAtoms}};
  return make_tensor_map(data, dims, true);
}

// A box: for each block of the cluster its rows of gate and the same of up.
CUtensorMap gate_up_boxes(const Weight& weight, int cluster) {
  const int64_t half = weight.n / 2, rows = kTile / 2 / cluster;
  const TensorDim dims[] = {{kAtom, 1, kAtom},
                            {rows, weight.k, static_cast<uint32_t>(rows)},
                            {2, half * weight.k, 2},
                            {half / rows, rows * weight.k, static_cast<uint32_t>(cluster)},
                            {weight.k / kAtom, kAtom, kAtoms}};
  return make_tensor_map(weight.data, dims, true);
}

// b as boxes of kAtom columns: of a tile's rows; of one of the parts gate and up the rows of each
// block's share, with zeros where the other part has its rows.
template <bool kSilu>
CUtensorMap b_boxes(const LoraLinearArgs& args, int part, int cluster) {
  const int64_t n = args.linear.weight.n, cols = int64_t{args.places.count} * args.places.max_rank;
  const auto* b = static_cast<const __nv_bfloat16*>(args.b);
  if constexpr (kSilu) {
    const int64_t half = n / 2, rows = kTile / 2 / cluster;
    const TensorDim dims[] = {{cols, 1, kAtom},
                              {rows, cols, static_cast<uint32_t>(rows)},
                              {1, cols, 2},
                              {half / rows, rows * cols, static_cast<uint32_t>(cluster)}};
    return make_tensor_map(b + part * half * cols, dims, true);
  }
  const TensorDim dims[] = {{cols, 1, kAtom}, {n, cols, kTile}};
  return make_tensor_map(b, dims, true);
}

template <bool kSilu>
Adapters adapters_of(const LoraLinearArgs& args, int box_rows, int cluster) {
  Adapters adapters{};
  const LoraPlaces& places = args.places;
  for (int part = 0; part < (kSilu ? 2 : 1); ++part)
    adapters.b[part] = b_boxes<kSilu>(args, part, cluster);
  std::copy_n(args.part_end, places.parts, adapters.part_end);
  const int64_t cols = int64_t{places.count} * places.max_rank;
  const TensorDim dims[] = {
      {cols, 1, kAtom},
      {places.parts, cols, 1},
      {args.linear.rows.padded, places.parts * cols, static_cast<uint32_t>(box_rows)}};
  adapters.shrunk = make_tensor_map(args.shrunk, dims, true);
  adapters.chunks = static_cast<int32_t>(ceil_div(cols, kChunk));
  return adapters;
}

// `of_adapters`: null without.
template <int kRows, bool kSilu, class Extra>
void run(StreamRef stream, const FusedLinearArgs& fused, const LoraLinearArgs* of_adapters) {
  const LinearArgs& linear = fused.linear;
  using L = Layout<kRows>;
  constexpr auto kernel = &linear_cluster_kernel<kRows, kSilu, Extra>;
  constexpr bool kLora = std::is_same_v<Extra, Adapters>;
  constexpr const char* kName = kLora ? "lora_linear" : "linear";
  constexpr int kBytes = L::bytes(L::kStages);
  load_kernel<kernel, kMaxSharedBytes>(kName);
  static const auto most = clusters_at_once<kernel>(kBytes);
  ClusterLinear args{};
  args.bias = linear.bias;
  args.residual = linear.residual;
  args.out = linear.out;
  args.n = kSilu ? linear.weight.n / 2 : linear.weight.n;
  args.chunks = static_cast<int32_t>(ceil_div(linear.weight.k, kChunk));
  args.tiles = static_cast<int32_t>(ceil_div(linear.weight.n, kTile));
  args.stages = L::kStages;
  args.send = fused.send;
  args.cluster = choose_cluster(most, args.tiles, args.chunks, kSilu || args.send.size > 0);
  args.rows = linear.rows;
  args.unit_norm = fused.unit_norm;
  args.eps = fused.eps;
  args.per_column = 1.0f / static_cast<float>(linear.weight.k);
  const auto at_once = static_cast<int64_t>(most[static_cast<size_t>(args.cluster)]);
  LaunchShape shape;
  shape.threads = kThreads;
  shape.cluster = args.cluster;
  shape.shared_bytes = kBytes;
  shape.grid = dim3(
      static_cast<unsigned>(ceil_div(args.tiles, ceil_div(args.tiles, at_once)) * args.cluster));
  const CUtensorMap weight = kSilu ? gate_up_boxes(linear.weight, args.cluster)
                                   : row_boxes(linear.weight.data, linear.weight.n, linear.weight.k,
                                               linear.weight.k, kTile);
  const CUtensorMap input =
      row_boxes(linear.in.data, linear.rows.padded, linear.weight.k, linear.in.stride, kRows);
  Extra extra{};
  if constexpr (kLora) extra = adapters_of<kSilu>(*of_adapters, kRows, args.cluster);
  launch<kernel, kMaxSharedBytes>(stream, kName, shape, args, extra, weight, input);
}

// The kernel of the fewest rows that has room for the input's.
template <bool kSilu, class Extra, int... kRows>
void run_least(StreamRef stream, const FusedLinearArgs& args, const LoraLinearArgs* of_adapters) {
  const auto takes = [&](auto rows) {
    if (args.linear.rows.padded > rows) return false;
    run<rows, kSilu, Extra>(stream, args, of_adapters);
    return true;
  };
  (void)(takes(std::integral_constant<int, kRows>()) || ...);
}

template <bool kSilu, class Extra>
void run_rows(StreamRef stream, const FusedLinearArgs& args, const LoraLinearArgs* of_adapters) {
  run_least<kSilu, Extra, 16, 24, 32, 40, 48, 56, 64, 72, kClusterRows>(stream, args, of_adapters);
}

}  // namespace

bool can_cluster(const LinearArgs& args) {
  return args.rows.padded <= kClusterRows && is_wide_bfloat16(args) && args.weight.k % kAtom == 0 &&
         args.weight.k > kChunk;
}

void linear_cluster(StreamRef stream, const FusedLinearArgs& args) {
  if (args.silu_mul) return run_rows<true, NoAdapters>(stream, args, nullptr);
  run_rows<false, NoAdapters>(stream, args, nullptr);
}

bool can_cluster_adapters(const LoraLinearArgs& args) {
  const LoraPlaces& places = args.places;
  if (places.max_rank % 8 != 0 || places.count * places.max_rank > kMaxLoraCols ||
      !is_wide(args.b)) {
    return false;
  }
  const int64_t n = args.linear.weight.n;
  if (args.silu_mul) {
    return can_cluster(args.linear) && n % 32 == 0 && places.parts == 2 &&
           args.part_end[0] * 2 == n;
  }
  for (int part = 0; part + 1 < places.parts; ++part)  // a tile is of one part
    if (args.part_end[part] % kTile != 0) return false;
  return can_cluster(args.linear);
}

void lora_linear(StreamRef stream, const LoraLinearArgs& args) {
  lora_shrink_spread(stream, args);
  FusedLinearArgs fused;
  fused.linear = args.linear;
  if (args.silu_mul) return run_rows<true, Adapters>(stream, fused, &args);
  run_rows<false, Adapters>(stream, fused, &args);
}

}  // namespace refrain::kernels
