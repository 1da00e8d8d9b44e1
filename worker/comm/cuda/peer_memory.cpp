#include "worker/comm/cuda/peer_memory.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace refrain::worker {

namespace {

constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

void exchange_bytes(HostGroup& group, const void* mine, size_t bytes, void* all) {
  REFRAIN_CHECK(bytes <= HostGroup::kSlotBytes, "{} bytes do not fit an exchange", bytes);
  std::memcpy(group.slot_to_fill(), mine, bytes);
  group.meet({Collective::kAllGather, DType::kUInt8, -1, 1, bytes});
  for (int rank = 0; rank < group.size(); ++rank) {
    std::memcpy(static_cast<std::byte*>(all) + static_cast<size_t>(rank) * bytes,
                group.slot_of(rank), bytes);
  }
}

void open_peers(CudaContext& context, HostGroup& group, void* own, void** addresses) {
  cudaIpcMemHandle_t mine{};
  context.check(cudaIpcGetMemHandle(&mine, own), "cudaIpcGetMemHandle");
  std::vector<cudaIpcMemHandle_t> all(static_cast<size_t>(group.size()));
  exchange_bytes(group, &mine, sizeof mine, all.data());
  for (int rank = 0; rank < group.size(); ++rank) {
    addresses[rank] = own;
    if (rank == group.rank()) continue;
    context.check(cudaIpcOpenMemHandle(&addresses[rank], all[static_cast<size_t>(rank)],
                                       cudaIpcMemLazyEnablePeerAccess),
                  "cudaIpcOpenMemHandle");
  }
  group.meet({});  // nobody pushes before everyone has cleared and opened
}

void close_peers(CudaContext& context, int rank, int size, void* const* addresses) {
  if (context.abandoned()) return;
  for (int i = 0; i < size; ++i) {
    if (i != rank && addresses[i] != nullptr) cudaIpcCloseMemHandle(addresses[i]);
  }
}

PeerMemory::PeerMemory(std::shared_ptr<CudaContext> context, HostGroup& group, int timeout_ms)
    : context_(std::move(context)) {
  const int size = group.size();
  buffer_ = make_cuda_buffer(context_, exchange_buffer_bytes(size), MemoryTag::kCollectives);
  counters_ = make_cuda_buffer(context_, kExchangeCounterBytes, MemoryTag::kCollectives);
  verdict_ = make_pinned_buffer(context_, sizeof(uint32_t));
  std::memset(verdict_->data(), 0, sizeof(uint32_t));
  context_->check(cudaMemset(buffer_->data(), 0xff, buffer_->bytes()), "clearing peer memory");
  context_->check(cudaMemset(counters_->data(), 0, kExchangeCounterBytes),
                  "clearing peer counters");
  context_->check(cudaDeviceSynchronize(), "clearing peer memory");

  exchange_.rank = group.rank();
  exchange_.size = size;
  place_counters(exchange_, counters_->data());
  void* verdict = nullptr;
  context_->check(cudaHostGetDevicePointer(&verdict, verdict_->data(), 0),
                  "cudaHostGetDevicePointer");
  exchange_.verdict = static_cast<uint32_t*>(verdict);
  exchange_.deadline_ns = static_cast<uint64_t>(timeout_ms) * kNsPerMs;

  void* addresses[kMaxPeers] = {};
  open_peers(*context_, group, buffer_->data(), addresses);
  for (int rank = 0; rank < size; ++rank) {
    exchange_.buffers[rank] = static_cast<uint4*>(addresses[rank]);
  }
}

PeerMemory::~PeerMemory() {
  void* addresses[kMaxPeers] = {};
  for (int rank = 0; rank < exchange_.size; ++rank) addresses[rank] = exchange_.buffers[rank];
  close_peers(*context_, exchange_.rank, exchange_.size, addresses);
}

uint32_t PeerMemory::verdict() const {
  return std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(verdict_->data()))
      .load(std::memory_order_relaxed);
}

void PeerMemory::abort() {
  std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(verdict_->data()))
      .store(kAbort, std::memory_order_relaxed);
}

}  // namespace refrain::worker
