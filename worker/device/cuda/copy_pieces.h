#pragma once
// Many pieces in one launch: of device memory (Copier::copy_all), of pinned memory
// (Stream::copy_rows).

#include <cuda_runtime.h>

#include "worker/device/copy_piece.h"

namespace refrain::worker {

inline constexpr size_t kCopyPieceBytes = 16 << 10;

// Of at most kCopyPieceBytes each, addresses and sizes multiples of 16. `pieces` is pinned memory,
// which nobody writes until the copies are done.
cudaError_t launch_copy_pieces(cudaStream_t stream, const CopyPiece* pieces, int count);

// `pieces` likewise.
cudaError_t launch_copy_rows(cudaStream_t stream, const CopyRows* pieces, int count, size_t place);

}  // namespace refrain::worker
