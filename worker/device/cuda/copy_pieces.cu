// copy_pieces: bound by the link between two GPUs: few blocks, whose loads are on their way
// together, so that the steps beside them keep most of the multiprocessors. copy_rows: bound by the
// link to the host's memory, which the blocks read; the copy engine takes each short row by itself.

#include <algorithm>
#include <cstdint>

#include "worker/device/cuda/copy_pieces.h"

namespace refrain::worker {

namespace {

constexpr int kGroup = 128;  // threads that copy a piece
constexpr int kGroups = 4;
constexpr int kMostBlocks = 40;
constexpr int kLoads = static_cast<int>(kCopyPieceBytes / (kGroup * sizeof(uint4)));
constexpr int kRowThreads = 512, kRowLoads = 4;

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

template <class Word>
__device__ void copy_rows_of(const CopyRows& piece, size_t place) {
  const auto* from = reinterpret_cast<const Word*>(piece.from);
  std::byte* to = piece.to + place * piece.step;
  const auto in_row = static_cast<unsigned>(piece.bytes / sizeof(Word));
  const auto n = static_cast<unsigned>(piece.rows) * in_row;
  for (unsigned begin = threadIdx.x; begin < n; begin += kRowThreads * kRowLoads) {
    Word words[kRowLoads];
#pragma unroll
    for (unsigned i = 0; i < kRowLoads; ++i)
      if (begin + i * kRowThreads < n) words[i] = from[begin + i * kRowThreads];
#pragma unroll
    for (unsigned i = 0; i < kRowLoads; ++i) {
      const unsigned at = begin + i * kRowThreads;
      if (at < n) reinterpret_cast<Word*>(to + at / in_row * piece.stride)[at % in_row] = words[i];
    }
  }
}

// A block for each piece.
__global__ void __launch_bounds__(kRowThreads) copy_rows(const CopyRows* pieces, size_t place) {
  const CopyRows piece = pieces[blockIdx.x];
  const auto of_all = reinterpret_cast<uintptr_t>(piece.to) |
                      reinterpret_cast<uintptr_t>(piece.from) | piece.step | piece.stride |
                      piece.bytes;
  if (of_all % 16 == 0) {
    copy_rows_of<uint4>(piece, place);
  } else if (of_all % 8 == 0) {
    copy_rows_of<uint2>(piece, place);
  } else {
    copy_rows_of<uint16_t>(piece, place);
  }
  __threadfence();  // what comes behind may read it before its own wait
}

// A kernel with another share of shared memory than a step's would not run beside them.
template <auto kernel>
cudaError_t configure() {
  static const cudaError_t configured = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  return configured;
}

}  // namespace

cudaError_t launch_copy_pieces(cudaStream_t stream, const CopyPiece* pieces, int count) {
  if (const cudaError_t status = configure<&copy_pieces>(); status != cudaSuccess) return status;
  const int blocks = std::min((count + kGroups - 1) / kGroups, kMostBlocks);
  copy_pieces<<<blocks, kGroup * kGroups, 0, stream>>>(pieces, count);
  return cudaGetLastError();
}

cudaError_t launch_copy_rows(cudaStream_t stream, const CopyRows* pieces, int count, size_t place) {
  if (const cudaError_t status = configure<&copy_rows>(); status != cudaSuccess) return status;
  copy_rows<<<count, kRowThreads, 0, stream>>>(pieces, place);
  return cudaGetLastError();
}

}  // namespace refrain::worker
