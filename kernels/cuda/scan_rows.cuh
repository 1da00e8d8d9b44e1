#pragma once

#include <cstdint>

namespace refrain::kernels {

// set_start(r, s) for each row: row r begins at s when the rows are length_of(row) long and follow
// each other; set_start(rows, s): they end there. By one block, whose threads see all starts
// afterwards.
template <class LengthOf, class SetStart>
__device__ void scan_rows(int32_t rows, const LengthOf& length_of, const SetStart& set_start) {
  __shared__ int32_t warp_total[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int32_t before = 0;
  for (int32_t first = 0; first < rows; first += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = first + static_cast<int32_t>(threadIdx.x);
    const int32_t length = row < rows ? length_of(row) : 0;
    int32_t sum = length;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    __syncthreads();  // the last round's totals have been read
    if (lane == 31) warp_total[warp] = sum;
    __syncthreads();
    int32_t all = 0, mine = before;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) mine += warp_total[w];
      all += warp_total[w];
    }
    if (row < rows) set_start(row, mine + sum - length);
    before += all;
  }
  if (threadIdx.x == 0) set_start(rows, before);
  __syncthreads();
}

template <class LengthOf>
__device__ void scan_rows(int32_t rows, int32_t* starts, const LengthOf& length_of) {
  scan_rows(rows, length_of, [starts](int32_t row, int32_t start) { starts[row] = start; });
}

}  // namespace refrain::kernels
