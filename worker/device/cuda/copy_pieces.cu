// Bound by the link between two GPUs: few blocks, whose loads are on their way together, so that
// the steps beside them keep most of the multiprocessors.

#include <algorithm>

#include "worker/device/cuda/copy_pieces.h"

namespace refrain::worker {

namespace {

constexpr int kGroup = 128;  // threads that copy a piece
constexpr int kGroups = 4;
constexpr int kMostBlocks = 40;
constexpr int kLoads = static_cast<int>(kCopyPieceBytes / (kGroup * sizeof(uint4)));

__global__ void __launch_bounds__(kGroup* kGroups) copy_pieces(const CopyPiece* pieces, int count) {
  const int first = static_cast<int>(blockIdx.x * kGroups + threadIdx.x / kGroup);
  for (int at = first; at < count; at += static_cast<int>(gridDim.x) * kGroups) {
    const auto* from = static_cast<const uint4*>(pieces[at].from);
    auto* to = static_cast<uint4*>(pieces[at].to);
    const auto n = static_cast<unsigned>(pieces[at].bytes / sizeof(uint4));
    const unsigned begin = threadIdx.x % kGroup;
    uint4 words[kLoads];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i)
      if (begin + i * kGroup < n) words[i] = from[begin + i * kGroup];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i)
      if (begin + i * kGroup < n) to[begin + i * kGroup] = words[i];
  }
}

// A kernel with another share of shared memory than a step's would not run beside them.
cudaError_t configure() {
  return cudaFuncSetAttribute(&copy_pieces, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

}  // namespace

cudaError_t launch_copy_pieces(cudaStream_t stream, const CopyPiece* pieces, int count) {
  static const cudaError_t configured = configure();
  if (configured != cudaSuccess) return configured;
  const int blocks = std::min((count + kGroups - 1) / kGroups, kMostBlocks);
  copy_pieces<<<blocks, kGroup * kGroups, 0, stream>>>(pieces, count);
  return cudaGetLastError();
}

}  // namespace refrain::worker
