// What the ranks pushed in the fused_linear before, added to the input of the one that follows: few
// threads poll it, a packet of each rank at a time, and all blocks of the linear read the result.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/peer_sum.cuh"

namespace refrain::kernels {
namespace {

constexpr int kPullThreads = 128;

// Polls until all ranks' packets are whole, or gives_up(). False: the group is broken.
__device__ bool await_packets(const PeerSum& sum, int32_t row, int32_t col, int64_t cols,
                              uint32_t number, uint4 (&packets)[kMaxPeerRanks]) {
  const uint64_t start = now_ns();
#pragma unroll 1
  for (int polls = 1;; ++polls) {
#pragma unroll
    for (int32_t r = 0; r < kMaxPeerRanks; ++r) {  // all on their way together
      if (r < sum.size) packets[r] = poll_words(packet_of(sum, sum.rank, r, row, col, cols));
    }
    int32_t missing = -1;
#pragma unroll
    for (int32_t r = 0; r < kMaxPeerRanks; ++r) {
      if (r < sum.size && !is_whole(packets[r], number)) missing = r;
    }
    if (missing < 0) return true;
    if (polls % kPollsALook == 0 && gives_up(sum, start, missing)) return false;
  }
}

// out = in + the sum over ranks. A thread: four columns of a row. The sum is in rank order. What is
// read was written before the linear that pushes began, which has waited for it; or it comes in
// packets. `out` may lie where that linear's input is.
__global__ void __launch_bounds__(kPullThreads)
    pull_kernel(const __grid_constant__ PeerSum sum, const Matrix in, const Matrix out,
                const Rows rows, int32_t cols) {
  let_successor_start();
  const int32_t thread = static_cast<int32_t>(blockIdx.x * kPullThreads + threadIdx.x);
  const int32_t row = thread / (cols / 4), col = thread % (cols / 4) * 4;
  const uint32_t number = __ldcg(pull_counter(sum)) + 1;
  // If the group breaks later, polling sees it.
  const bool is_live =
      row < live_rows(rows) && *reinterpret_cast<volatile uint32_t*>(sum.broken) == 0;
  uint2 before{};
  float v[4] = {};
  if (row < rows.padded) {
    before = __ldcg(reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(in.data) +
                                                   row * in.stride + col));
    if (is_live) {
      uint4 packets[kMaxPeerRanks];
      if (await_packets(sum, row, col, cols, number, packets)) {
#pragma unroll
        for (int32_t r = 0; r < kMaxPeerRanks; ++r) {
          if (r >= sum.size) continue;
          v[0] += low_half(packets[r].x), v[1] += high_half(packets[r].x);
          v[2] += low_half(packets[r].z), v[3] += high_half(packets[r].z);
        }
      }
    }
  }
  wait_for_predecessor();
  if (row < rows.padded) {
    const auto add = [](float before, float delta) {
      return before + rounded(delta, DType::kBFloat16);
    };
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(out.data) + row * out.stride + col) =
        make_uint2(pack_halves(add(low_half(before.x), v[0]), add(high_half(before.x), v[1])),
                   pack_halves(add(low_half(before.y), v[2]), add(high_half(before.y), v[3])));
  }
  __syncthreads();
  if (threadIdx.x == 0) *pull_counter(sum) = number;
}

}  // namespace

void add_pulled_sum(StreamRef stream, const PeerSum& sum, const Matrix& in, const Matrix& out,
                    const Rows& rows, int64_t cols) {
  // As many blocks for every number of rows: each counts its exchanges.
  const int64_t blocks = ceil_div(kPeerSumRows * cols / 4, kPullThreads);
  static_assert(kPeerSumRows * kMaxFusedNormCols / 4 <= kPeerSumBlocks * kPullThreads);
  LaunchShape shape;
  shape.threads = kPullThreads;
  shape.grid = dim3(static_cast<unsigned>(blocks));
  launch<&pull_kernel>(stream, "add_pulled_sum", shape, sum, in, out, rows,
                       static_cast<int32_t>(cols));
}

}  // namespace refrain::kernels
