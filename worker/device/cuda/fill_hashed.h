#pragma once
// Fills rows of a row-major weight on the device with hashed numbers (Device::fill_hashed).

#include <cuda_runtime.h>

#include "kernels/core/hashed_rows.h"

namespace refrain::worker {

// dtype: bfloat16 or float32.
cudaError_t launch_fill_hashed(cudaStream_t stream, const kernels::HashedRows& rows);

}  // namespace refrain::worker
