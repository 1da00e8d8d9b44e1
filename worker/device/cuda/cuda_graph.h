#pragma once
// An instantiated and uploaded CUDA graph and the names of its nodes. The digest that ranks share
// is made of the collectives: ranks of unequal shards run other kernels in other shapes, but must
// meet in the same exchanges. The launches' is made of the nodes (graph_nodes.h). Holds the
// communicators whose operations it contains. Device thread.

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/unique_handle.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/device.h"

namespace refrain::worker {

struct CudaGraphTraits {
  using Type = cudaGraph_t;
  static Type invalid() { return nullptr; }
  static void close(Type graph) { cudaGraphDestroy(graph); }
};
using UniqueCudaGraph = UniqueHandle<CudaGraphTraits>;

class CudaGraph final : public Graph {
 public:
  // Throws OutOfMemory when the device has no room for it.
  CudaGraph(std::shared_ptr<CudaContext> context, UniqueCudaGraph recorded,
            std::vector<std::shared_ptr<const void>> holds, const std::string& collectives,
            cudaStream_t upload_on);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  int num_nodes() const override { return static_cast<int>(names_.size()); }
  // What free memory fell by; 0 where the driver reused memory of graphs that are gone.
  size_t bytes() const override { return bytes_; }
  uint64_t digest() const override { return digest_; }
  uint64_t launch_digest() const override { return launch_digest_; }
  std::string_view node_name(int index) const override {
    return names_.at(static_cast<size_t>(index));
  }
  cudaGraphExec_t executable() const { return executable_; }

 private:
  void instantiate(cudaGraph_t recorded, cudaStream_t upload_on);

  std::shared_ptr<CudaContext> context_;
  std::vector<std::shared_ptr<const void>> holds_;
  std::vector<const char*> names_;  // owned by the modules
  uint64_t digest_ = 0, launch_digest_ = 0;
  cudaGraphExec_t executable_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace refrain::worker
