#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launcher.h"
#include "runtime/base/check.h"

namespace refrain::kernels {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded: nothing here links against it.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &result),
             "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  REFRAIN_CHECK(result == cudaDriverEntryPointSuccess && function != nullptr,
                "this driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride,
                            uint32_t box_rows, uint32_t box_cols, bool swizzled) {
  static const Encode encode = find_encode();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {box_cols, box_rows}, steps[2] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  REFRAIN_CHECK(
      result == CUDA_SUCCESS,
      "cuTensorMapEncodeTiled failed with {}: [{}, {}] rows {} apart at {}, boxes [{}, {}]",
      static_cast<int>(result), rows, cols, stride, data, box_rows, box_cols);
  return map;
}

}  // namespace refrain::kernels
