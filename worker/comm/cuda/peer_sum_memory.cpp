#include "worker/comm/cuda/peer_sum_memory.h"

#include "worker/comm/cuda/peer_memory.h"

namespace refrain::worker {
namespace {

constexpr size_t kCountersBytes = 2 * kernels::kPeerSumBlocks * sizeof(uint32_t);  // of a place

// Of a place: a packet of 16 bytes for every four columns.
size_t slot_bytes(int size, int64_t cols) {
  return static_cast<size_t>(size) * kernels::kPeerSumRows * static_cast<size_t>(cols) * 4;
}

}  // namespace

PeerSumMemory::PeerSumMemory(std::shared_ptr<CudaContext> context, HostGroup& group,
                             const PeerExchange& exchange, int32_t places, int64_t cols)
    : context_(std::move(context)), places_(places), cols_(cols) {
  const int size = group.size();
  REFRAIN_CHECK(size <= kernels::kMaxPeerRanks && cols % 4 == 0,
                "peer sums of {} ranks and {} columns; at most {} ranks, columns in groups of 4",
                size, cols, kernels::kMaxPeerRanks);
  const auto count = static_cast<size_t>(places);
  slots_ = make_cuda_buffer(context_, count * slot_bytes(size, cols), MemoryTag::kCollectives);
  counters_ = make_cuda_buffer(context_, count * kCountersBytes, MemoryTag::kCollectives);
  context_->check(cudaMemset(slots_->data(), 0, slots_->bytes()), "clearing peer sums");
  context_->check(cudaMemset(counters_->data(), 0, counters_->bytes()), "clearing peer counters");
  context_->check(cudaDeviceSynchronize(), "clearing peer sums");
  first_.rank = group.rank();
  first_.size = size;
  first_.counters = static_cast<uint32_t*>(counters_->data());
  first_.broken = exchange.broken;
  first_.looked = exchange.looked;
  first_.verdict = exchange.verdict;
  first_.deadline_ns = exchange.deadline_ns;
  open_peers(*context_, group, slots_->data(), first_.slots);
}

PeerSumMemory::~PeerSumMemory() { close_peers(*context_, first_.rank, first_.size, first_.slots); }

kernels::PeerSum PeerSumMemory::place(int32_t index) const {
  REFRAIN_CHECK(index >= 0 && index < places_, "peer sum {} of {}", index, places_);
  kernels::PeerSum sum = first_;
  const size_t at = static_cast<size_t>(index) * slot_bytes(sum.size, cols_);
  for (int32_t rank = 0; rank < sum.size; ++rank) {
    sum.slots[rank] = static_cast<std::byte*>(sum.slots[rank]) + at;
  }
  sum.counters += static_cast<size_t>(index) * kCountersBytes / sizeof(uint32_t);
  return sum;
}

}  // namespace refrain::worker
