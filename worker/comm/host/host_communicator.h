#pragma once
// Collectives between worker processes, over shared memory or tcp (HostGroup). Each exchange is
// three recordable launches (put, meet, take) that the whole team runs. Sums are made in rank order
// in float32 by every rank, so all hold equal bits. Device thread; graphs that hold its operations
// must be gone before it is destroyed, otherwise the process ends.

#include <memory>

#include "worker/comm/bench_access.h"
#include "worker/comm/host/host_group.h"
#include "worker/device/host/host_stream.h"

namespace refrain::worker {

class HostCommunicator final : public Communicator, public BenchAccess {
 public:
  // `group` is null in a group of one.
  HostCommunicator(std::shared_ptr<HostContext> context, std::unique_ptr<HostGroup> group);
  ~HostCommunicator() override;

  int rank() const override { return group_ ? group_->rank() : 0; }
  int size() const override { return group_ ? group_->size() : 1; }
  void all_reduce(Stream& stream, kernels::Matrix data, int64_t cols, kernels::Rows rows) override;
  void all_gather(Stream& stream, kernels::Matrix in, void* out, int64_t cols,
                  kernels::Rows rows) override;
  void reduce_scatter(Stream& stream, kernels::Matrix in, kernels::Matrix out, int64_t cols,
                      int32_t rows) override;
  void broadcast(Stream& stream, void* data, size_t bytes, int root) override;
  void barrier() override;
  size_t bytes() const override { return group_ ? group_->bytes() : 0; }
  std::vector<std::string> sum_ways(size_t) const override { return {"exchange"}; }
  void hold_to_sum_way(const std::string& way) override;
  std::unique_ptr<Buffer> next_rank_memory(size_t bytes) override;

 private:
  HostStream& recording_on(Stream& stream);

  std::shared_ptr<HostContext> context_;
  std::unique_ptr<HostGroup> group_;
  std::shared_ptr<const int> users_;  // one reference here and one in each graph
};

}  // namespace refrain::worker
