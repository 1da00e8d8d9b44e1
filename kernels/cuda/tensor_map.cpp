#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string>

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

CUtensorMap make_tensor_map(const void* data, std::span<const TensorDim> dims, bool swizzled,
                            L2Ask ask) {
  static const Encode encode = find_encode();
  constexpr size_t kMost = 5;
  REFRAIN_CHECK(dims.size() >= 2 && dims.size() <= kMost, "{} dimensions", dims.size());
  cuuint64_t sizes[kMost] = {}, strides[kMost] = {};  // of all but the first: in bytes
  cuuint32_t box[kMost] = {}, steps[kMost] = {};
  std::string shape;
  for (size_t i = 0; i < dims.size(); ++i) {
    sizes[i] = static_cast<cuuint64_t>(dims[i].size);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(dims[i].stride) * 2;
    box[i] = dims[i].box;
    steps[i] = 1;
    shape += fmt::format(" {} by {} of {}", dims[i].box, dims[i].stride, dims[i].size);
  }
  CUtensorMap map;
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dims.size()),
      const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      ask == L2Ask::k256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  REFRAIN_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed with {}: at {}, boxes{}",
                static_cast<int>(result), data, shape);
  return map;
}

CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride,
                            uint32_t box_rows, uint32_t box_cols, bool swizzled) {
  const TensorDim dims[] = {{cols, 1, box_cols}, {rows, stride, box_rows}};
  return make_tensor_map(data, dims, swizzled);
}

}  // namespace refrain::kernels
