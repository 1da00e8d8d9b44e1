#pragma once
// The memory of the sums that fused_linears make among ranks (kernels::PeerSum): slots for packets
// that the peers write through CUDA IPC, and counters. Owned by the communicator; device thread.

#include <memory>
#include <vector>

#include "worker/comm/cuda/peer_exchange.h"
#include "worker/comm/host/host_group.h"
#include "worker/device/cuda/cuda_context.h"

namespace refrain::worker {

class PeerSumMemory {
 public:
  // Every rank calls it with the same sizes; handles travel through the group. Deadline, and the
  // words that say of a broken group, are those of `exchange`.
  PeerSumMemory(std::shared_ptr<CudaContext> context, HostGroup& group,
                const PeerExchange& exchange, int32_t places, int64_t cols);
  ~PeerSumMemory();
  PeerSumMemory(const PeerSumMemory&) = delete;
  PeerSumMemory& operator=(const PeerSumMemory&) = delete;

  kernels::PeerSum place(int32_t index) const;
  int64_t cols() const { return cols_; }
  size_t bytes() const { return slots_->bytes() + counters_->bytes(); }

 private:
  std::shared_ptr<CudaContext> context_;
  std::unique_ptr<Buffer> slots_, counters_;
  kernels::PeerSum first_;  // of place 0
  int32_t places_;
  int64_t cols_;
};

}  // namespace refrain::worker
