#pragma once
// The memory of a PeerExchange: this rank's buffer, the peers' buffers opened through CUDA IPC, the
// counters and the word in host memory. Owned by the communicator; device thread.

#include <memory>

#include "worker/comm/cuda/peer_exchange.h"
#include "worker/comm/host/host_group.h"
#include "worker/device/cuda/cuda_context.h"

namespace refrain::worker {

class PeerMemory {
 public:
  // Every rank calls it; handles travel through the group.
  PeerMemory(std::shared_ptr<CudaContext> context, HostGroup& group, int timeout_ms);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const PeerExchange& exchange() const { return exchange_; }
  size_t bytes() const { return buffer_->bytes() + counters_->bytes(); }
  // 0, or 1 + the rank that did not come in time, or kAbort.
  uint32_t verdict() const;
  void abort();  // kernels that wait end at their next look

 private:
  std::shared_ptr<CudaContext> context_;
  std::unique_ptr<Buffer> buffer_, counters_, verdict_;
  PeerExchange exchange_;
};

// Opens the buffer of every rank through CUDA IPC: addresses[i] is rank i's, as this device sees
// it. Every rank calls it, having cleared its own; nobody returns before all have opened.
void open_peers(CudaContext& context, HostGroup& group, void* own, void** addresses);
void close_peers(CudaContext& context, int rank, int size, void* const* addresses);

// Every rank gives `bytes` bytes and gets those of all ranks, in rank order.
void exchange_bytes(HostGroup& group, const void* mine, size_t bytes, void* all);

}  // namespace refrain::worker
