#include "worker/device/cuda/cuda_graph.h"

#include <cuda.h>
#include <fmt/format.h>

#include <utility>

#include "worker/device/cuda/driver_function.h"

namespace refrain::worker {

namespace {

constexpr size_t kBytesANode = 4096;  // a guess for a graph that did not fit

// FNV-1a.
uint64_t digest_of(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return value;
}

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

// The kernel's own (mangled) name.
const char* name_of_kernel(cudaGraphNode_t node) {
  auto* get_params = driver_function<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(
      "cuGraphKernelNodeGetParams", 12000);
  auto* function_name = driver_function<CUresult(const char**, CUfunction)>("cuFuncGetName", 12030);
  auto* kernel_name = driver_function<CUresult(const char**, CUkernel)>("cuKernelGetName", 12030);
  CUDA_KERNEL_NODE_PARAMS params{};
  if (get_params(node, &params) != CUDA_SUCCESS) return "kernel";
  const char* name = nullptr;
  if (params.func != nullptr) {
    if (function_name(&name, params.func) != CUDA_SUCCESS) name = nullptr;
  } else if (params.kern != nullptr) {
    if (kernel_name(&name, params.kern) != CUDA_SUCCESS) name = nullptr;
  }
  return name == nullptr ? "kernel" : name;
}

}  // namespace

CudaGraph::CudaGraph(std::shared_ptr<CudaContext> context, UniqueCudaGraph recorded,
                     std::vector<std::shared_ptr<const void>> holds, const std::string& collectives,
                     cudaStream_t upload_on)
    : context_(std::move(context)), holds_(std::move(holds)), digest_(digest_of(collectives)) {
  describe(recorded.get());
  instantiate(recorded.get(), upload_on);
  context_->add_memory(bytes_, MemoryTag::kGraphs);
}

CudaGraph::~CudaGraph() {
  context_->drop_memory(bytes_, MemoryTag::kGraphs);
  if (!context_->abandoned()) cudaGraphExecDestroy(executable_);
}

void CudaGraph::describe(cudaGraph_t recorded) {
  size_t count = 0;
  context_->check(cudaGraphGetNodes(recorded, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) {
    context_->check(cudaGraphGetNodes(recorded, nodes.data(), &count), "cudaGraphGetNodes");
  }
  names_.reserve(count);
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    context_->check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    names_.push_back(type == cudaGraphNodeTypeKernel ? name_of_kernel(node) : kind_name(type));
  }
}

void CudaGraph::instantiate(cudaGraph_t recorded, cudaStream_t upload_on) {
  const size_t before = context_->memory().free;
  cudaError_t status = cudaGraphInstantiate(&executable_, recorded, 0);
  if (status == cudaSuccess) status = cudaGraphUpload(executable_, upload_on);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    throw OutOfMemory(
        fmt::format("a graph of {} nodes does not fit: {} bytes are free", names_.size(), before),
        names_.size() * kBytesANode);
  }
  if (status != cudaSuccess && executable_ != nullptr) cudaGraphExecDestroy(executable_);
  context_->check(status, "instantiating and uploading a graph");
  const size_t after = context_->memory().free;
  bytes_ = before > after ? before - after : 0;
  if (const size_t missing = context_->over_limit(bytes_); missing > 0) {
    cudaGraphExecDestroy(executable_);
    throw OutOfMemory(fmt::format("the memory limit has no {} bytes for a graph", bytes_), missing);
  }
}

}  // namespace refrain::worker
