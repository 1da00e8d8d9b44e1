#pragma once
// The paged KV cache of one Program: per layer [block][K, V][kv head][token in block][head_dim],
// heads contiguous. Block 0 is reserved for padded rows. Addresses are fixed before capture; the
// memory behind them may come after it, so that captures never lack what the cache holds (CG-25).
// Device thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/program/program.h"

namespace refrain::worker {

// Where a layer's cache lies: its own geometry, so that groups may differ.
struct KvLayer {
  int layer = 0;
  DType dtype = DType::kBFloat16;
  int64_t kv_heads = 0, head_dim = 0;
  int64_t block_bytes(int64_t block_size) const {
    return 2 * kv_heads * block_size * head_dim * static_cast<int64_t>(size_of(dtype));
  }
};

// The cached layers of a Program, in the order of its state values.
std::vector<KvLayer> kv_layers(const Program& program);
// Bytes of one block over all layers.
int64_t kv_block_bytes(const std::vector<KvLayer>& layers, int64_t block_size);

// Whether the configuration names the size of the cache: it is then backed before the captures.
// Otherwise it takes what they leave.
bool has_fixed_size(const ipc::WorkerConfig& config);

// How many blocks (the reserved one included) this rank would hold: num_gpu_blocks_override, else
// kv_cache_memory_bytes, else a share of the free memory, never more than max_num_seqs requests of
// max_model_len need. Too little for one request of max_model_len is an error with the numbers.
Result<int64_t> choose_num_blocks(const ipc::WorkerConfig& config, int64_t block_bytes,
                                  const MemoryAccount& memory, bool ranks_share_memory);

class KvCache {
 public:
  // Addresses for `max_blocks`, the reserved one included, which alone has memory and is cleared.
  // Throws OutOfMemory.
  KvCache(Device& device, Stream& stream, std::vector<KvLayer> layers, int64_t block_size,
          int64_t max_blocks);

  // Memory for `num_blocks` of every layer, at most max_blocks(), or none with OutOfMemory.
  void back(int64_t num_blocks);
  int64_t max_blocks() const { return max_blocks_; }
  int64_t num_blocks() const { return num_blocks_; }  // with memory
  const std::vector<KvLayer>& layers() const { return layers_; }
  // By layer index of the model; null for a layer without a cache.
  const std::vector<void*>& addresses() const { return addresses_; }

 private:
  std::vector<KvLayer> layers_;
  int64_t block_size_, max_blocks_;
  int64_t num_blocks_ = 1;
  std::vector<std::unique_ptr<Reservation>> memory_;  // by place in layers_
  std::vector<void*> addresses_;
};

}  // namespace refrain::worker
