#include "worker/device/cuda/graph_nodes.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "worker/device/cuda/driver_function.h"
#include "worker/device/digest.h"

namespace refrain::worker {

namespace {

const char* kind_name(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "copy";
    case cudaGraphNodeTypeMemset:
      return "memset";
    case cudaGraphNodeTypeHost:
      return "host";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeEventRecord:
      return "event_record";
    case cudaGraphNodeTypeWaitEvent:
      return "event_wait";
    default:
      return "other";
  }
}

// The driver's view of kernel nodes; a kernel is known by its function or by its handle.
class KernelReader {
 public:
  // False: the driver does not tell.
  bool read(cudaGraphNode_t node) {
    params_ = {};
    return get_params_(node, &params_) == CUDA_SUCCESS;
  }

  const char* name() const {
    const char* name = nullptr;
    const CUresult status = params_.func != nullptr   ? function_name_(&name, params_.func)
                            : params_.kern != nullptr ? kernel_name_(&name, params_.kern)
                                                      : CUDA_ERROR_INVALID_VALUE;
    return status == CUDA_SUCCESS && name != nullptr ? name : "kernel";
  }

  void add_launch(Digest& digest) const {
    for (const unsigned int each :
         {params_.gridDimX, params_.gridDimY, params_.gridDimZ, params_.blockDimX,
          params_.blockDimY, params_.blockDimZ, params_.sharedMemBytes}) {
      digest.add(each);
    }
  }

  void add_parameters(Digest& digest) const {
    size_t offset = 0, size = 0;
    for (size_t i = 0; parameter(i, offset, size); ++i) {
      digest.add(size);
      uint32_t value = 0;
      if (size > sizeof value || params_.kernelParams == nullptr) continue;
      std::memcpy(&value, params_.kernelParams[i], size);
      digest.add(value);
    }
  }

 private:
  // False: there are no more.
  bool parameter(size_t index, size_t& offset, size_t& size) const {
    if (params_.func != nullptr) {
      return function_parameter_(params_.func, index, &offset, &size) == CUDA_SUCCESS;
    }
    return params_.kern != nullptr &&
           kernel_parameter_(params_.kern, index, &offset, &size) == CUDA_SUCCESS;
  }

  CUresult (*get_params_)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) =
      driver_function<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>("cuGraphKernelNodeGetParams",
                                                                       12000);
  CUresult (*function_name_)(const char**, CUfunction) =
      driver_function<CUresult(const char**, CUfunction)>("cuFuncGetName", 12030);
  CUresult (*kernel_name_)(const char**, CUkernel) =
      driver_function<CUresult(const char**, CUkernel)>("cuKernelGetName", 12030);
  CUresult (*function_parameter_)(CUfunction, size_t, size_t*, size_t*) =
      driver_function<CUresult(CUfunction, size_t, size_t*, size_t*)>("cuFuncGetParamInfo", 12040);
  CUresult (*kernel_parameter_)(CUkernel, size_t, size_t*, size_t*) =
      driver_function<CUresult(CUkernel, size_t, size_t*, size_t*)>("cuKernelGetParamInfo", 12040);
  CUDA_KERNEL_NODE_PARAMS params_{};
};

void add_cluster(CudaContext& context, cudaGraphNode_t node, Digest& digest) {
  cudaKernelNodeAttrValue value{};
  context.check(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeClusterDimension, &value),
                "cudaGraphKernelNodeGetAttribute");
  digest.add(value.clusterDim.x);
  digest.add(value.clusterDim.y);
  digest.add(value.clusterDim.z);
}

void add_copy(CudaContext& context, cudaGraphNode_t node, Digest& digest) {
  cudaMemcpy3DParms params{};
  context.check(cudaGraphMemcpyNodeGetParams(node, &params), "cudaGraphMemcpyNodeGetParams");
  digest.add(params.extent.width);
  digest.add(params.extent.height);
  digest.add(params.extent.depth);
  digest.add(static_cast<uint64_t>(params.kind));
}

void add_memset(CudaContext& context, cudaGraphNode_t node, Digest& digest) {
  cudaMemsetParams params{};
  context.check(cudaGraphMemsetNodeGetParams(node, &params), "cudaGraphMemsetNodeGetParams");
  digest.add(params.elementSize);
  digest.add(params.width);
  digest.add(params.height);
  digest.add(params.value);
}

void add_edges(CudaContext& context, cudaGraph_t recorded,
               const std::vector<cudaGraphNode_t>& nodes, Digest& digest) {
  size_t count = 0;
  context.check(cudaGraphGetEdges(recorded, nullptr, nullptr, nullptr, &count),
                "cudaGraphGetEdges");
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (count > 0) {
    context.check(cudaGraphGetEdges(recorded, from.data(), to.data(), data.data(), &count),
                  "cudaGraphGetEdges");
  }
  const auto place = [&](cudaGraphNode_t node) {
    return static_cast<uint64_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
  };
  digest.add(count);
  for (size_t i = 0; i < count; ++i) {
    digest.add(place(from[i]));
    digest.add(place(to[i]));
    digest.add(data[i].type);
  }
}

}  // namespace

GraphNodes read_nodes(CudaContext& context, cudaGraph_t recorded) {
  size_t count = 0;
  context.check(cudaGraphGetNodes(recorded, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) {
    context.check(cudaGraphGetNodes(recorded, nodes.data(), &count), "cudaGraphGetNodes");
  }
  GraphNodes read;
  read.names.reserve(count);
  Digest digest;
  KernelReader kernel;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    context.check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    const char* name = kind_name(type);
    digest.add(static_cast<uint64_t>(type));
    if (type == cudaGraphNodeTypeKernel && kernel.read(node)) {
      name = kernel.name();
      kernel.add_launch(digest);
      kernel.add_parameters(digest);
      add_cluster(context, node, digest);
    }
    if (type == cudaGraphNodeTypeMemcpy) add_copy(context, node, digest);
    if (type == cudaGraphNodeTypeMemset) add_memset(context, node, digest);
    digest.add(std::string_view(name));
    read.names.push_back(name);
  }
  add_edges(context, recorded, nodes, digest);
  read.digest = digest.value();
  return read;
}

}  // namespace refrain::worker
