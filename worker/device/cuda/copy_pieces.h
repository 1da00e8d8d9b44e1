#pragma once
// Many small pieces of device memory in one launch (Copier::copy_all).

#include <cuda_runtime.h>

#include "worker/device/copy_piece.h"

namespace refrain::worker {

inline constexpr size_t kCopyPieceBytes = 16 << 10;

// Of at most kCopyPieceBytes each, addresses and sizes multiples of 16. `pieces` is pinned memory,
// which nobody writes until the copies are done.
cudaError_t launch_copy_pieces(cudaStream_t stream, const CopyPiece* pieces, int count);

}  // namespace refrain::worker
