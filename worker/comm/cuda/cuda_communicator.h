#pragma once
// Collectives of the GPUs of one machine, one process each: small sums and gathers over peer
// memory, the rest over NCCL; ranks find each other in shared memory and meet there for host-side
// barriers. A rank that is gone is seen by its process while the device thread waits. Device
// thread; graphs that hold its operations must be gone before it is destroyed, otherwise the
// process ends.

#include <memory>
#include <string>

#include "worker/comm/bench_access.h"
#include "worker/comm/cuda/nccl_library.h"
#include "worker/comm/cuda/peer_memory.h"
#include "worker/comm/cuda/peer_sum_memory.h"
#include "worker/comm/host/host_group.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/cuda/cuda_stream.h"

namespace refrain::worker {

class CudaCommunicator final : public Communicator, public BenchAccess, private Watch {
 public:
  static Result<std::unique_ptr<Communicator>> join(std::shared_ptr<CudaContext> context,
                                                    const GroupOptions& options);
  ~CudaCommunicator() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  void all_reduce(Stream& stream, kernels::Matrix data, int64_t cols, kernels::Rows rows) override;
  bool all_reduce_add_rms_norm(Stream& stream, const kernels::AddRmsNormArgs& args,
                               bool sent = false) override;
  kernels::PeerPackets sent_rows(int32_t rows, int64_t cols) const override;
  void all_gather(Stream& stream, kernels::Matrix in, void* out, int64_t cols,
                  kernels::Rows rows) override;
  void reduce_scatter(Stream& stream, kernels::Matrix in, kernels::Matrix out, int64_t cols,
                      int32_t rows) override;
  void broadcast(Stream& stream, void* data, size_t bytes, int root) override;
  void reserve_peer_sums(int32_t places, int64_t cols) override;
  kernels::PeerSum peer_sum(Stream& stream, int32_t place, kernels::Rows rows) override;
  void barrier() override;
  bool use_nccl_alone() override;
  bool sums_in_rank_order(size_t bytes) const override;
  std::vector<std::string> sum_ways(size_t bytes) const override;
  void hold_to_sum_way(const std::string& way) override;  // gathers too
  std::unique_ptr<Buffer> next_rank_memory(size_t bytes) override;
  size_t bytes() const override {
    return nccl_bytes_ + (peers_ ? peers_->bytes() : 0) + (sums_ ? sums_->bytes() : 0);
  }

 private:
  CudaCommunicator(std::shared_ptr<CudaContext> context, GroupOptions options);
  Status connect();
  Status connect_nccl();
  bool exchanges(const kernels::Matrix& data, size_t bytes,
                 size_t most) const;  // by our own kernels
  CudaStream& recording_on(Stream& stream, const Post& post);
  void check(ncclResult_t status, const char* call);
  void look(std::chrono::steady_clock::duration waited) override;
  void look_after() override;
  [[noreturn]] void give_up(const std::string& reason);

  std::shared_ptr<CudaContext> context_;
  GroupOptions options_;
  std::unique_ptr<HostGroup> group_;  // null in a group of one, as all that follows
  std::unique_ptr<NcclLibrary> nccl_;
  ncclComm_t comm_ = nullptr;
  size_t nccl_bytes_ = 0;
  std::unique_ptr<PeerMemory> peers_;
  std::unique_ptr<PeerSumMemory> sums_;
  std::string way_;                   // sums and gathers are held to it; empty: by size
  std::shared_ptr<const int> users_;  // one reference here and one in each graph
};

}  // namespace refrain::worker
