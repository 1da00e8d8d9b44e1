#include "worker/device/cuda/cuda_graph.h"

#include <fmt/format.h>

#include <utility>

#include "worker/device/cuda/graph_nodes.h"
#include "worker/device/digest.h"

namespace refrain::worker {

namespace {

constexpr size_t kBytesANode = 4096;  // a guess for a graph that did not fit

uint64_t digest_of(const std::string& text) {
  Digest digest;
  digest.add(text);
  return digest.value();
}

}  // namespace

CudaGraph::CudaGraph(std::shared_ptr<CudaContext> context, UniqueCudaGraph recorded,
                     std::vector<std::shared_ptr<const void>> holds, const std::string& collectives,
                     cudaStream_t upload_on)
    : context_(std::move(context)), holds_(std::move(holds)), digest_(digest_of(collectives)) {
  GraphNodes nodes = read_nodes(*context_, recorded.get());
  names_ = std::move(nodes.names);
  launch_digest_ = nodes.digest;
  instantiate(recorded.get(), upload_on);
  context_->add_memory(bytes_, MemoryTag::kGraphs);
}

CudaGraph::~CudaGraph() {
  context_->drop_memory(bytes_, MemoryTag::kGraphs);
  if (!context_->abandoned()) cudaGraphExecDestroy(executable_);
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
