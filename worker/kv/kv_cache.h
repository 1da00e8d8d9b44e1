#pragma once
// The blocks of the paged state groups of one Program: per layer [block][part][unit][token in
// block][elements], parts as its PagedLayout lists them. Block 0 of each group is reserved for
// padded rows. Addresses are fixed before capture; the memory behind them may come after it, so
// that captures never lack what the cache holds (CG-25). Device thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/program/program.h"

namespace refrain::worker {

// Where a layer's blocks lie.
struct PagedLayer {
  int layer = 0;
  int group = 0;
  ValueId value = kNoValue;
  PagedLayout layout;
  int64_t block_bytes(int64_t block_size) const { return layout.token_bytes() * block_size; }
};

// The layers with blocks, in the order of their values.
std::vector<PagedLayer> paged_layers(const Program& program);

// Of each slot group, the reserved one included: as many as there are slots.
int64_t num_checkpoints(const Program& program);

// The state groups of a Program as the coordinator is told of them; no blocks of paged ones yet.
std::vector<ipc::StateGroup> describe_groups(const Program& program, int64_t block_size);

// Whether the configuration names the size of the cache: it is then backed before the captures.
// Otherwise it takes what they leave.
bool has_fixed_size(const ipc::WorkerConfig& config);

// Sets how many blocks (the reserved one included) this rank would hold of each paged group:
// num_gpu_blocks_override of each; else what kv_cache_memory_bytes, else a share of the free
// memory, gives them, divided as one request of max_model_len would, never more than max_num_seqs
// such requests need. Too little for one of them is an error with the numbers.
Status choose_num_blocks(const ipc::WorkerConfig& config, const MemoryAccount& memory,
                         bool ranks_share_memory, std::vector<ipc::StateGroup>& groups);
// The blocks of each group for which `missing` bytes fewer are needed; none: then no request of
// max_model_len fits.
std::vector<int64_t> fewer_blocks(const ipc::WorkerConfig& config,
                                  const std::vector<ipc::StateGroup>& groups,
                                  const std::vector<int64_t>& blocks, size_t missing);

class KvCache {
 public:
  // Addresses for `max_blocks` of each group, the reserved one included, which alone has memory and
  // is cleared. Throws OutOfMemory.
  KvCache(Device& device, Stream& stream, const Program& program, int64_t block_size,
          std::vector<int64_t> max_blocks);

  // Memory for so many blocks of every layer, by group and at most max_blocks(), or none with
  // OutOfMemory.
  void back(const std::vector<int64_t>& num_blocks);
  const std::vector<int64_t>& max_blocks() const { return max_blocks_; }
  const std::vector<int64_t>& num_blocks() const { return num_blocks_; }  // with memory
  const std::vector<PagedLayer>& layers() const { return layers_; }
  // By ValueId; null for what has no blocks.
  const std::vector<void*>& addresses() const { return addresses_; }
  std::byte* address(const PagedLayer& layer) const {
    return static_cast<std::byte*>(addresses_[static_cast<size_t>(layer.value)]);
  }

 private:
  size_t bytes(const PagedLayer& layer, const std::vector<int64_t>& blocks) const {
    return static_cast<size_t>(layer.block_bytes(block_size_) *
                               blocks[static_cast<size_t>(layer.group)]);
  }

  std::vector<PagedLayer> layers_;
  int64_t block_size_;
  std::vector<int64_t> max_blocks_, num_blocks_;      // by group
  std::vector<std::unique_ptr<Reservation>> memory_;  // by place in layers_
  std::vector<void*> addresses_;
};

}  // namespace refrain::worker
