#include "worker/kv/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

constexpr double kSharedMemoryShare = 0.25;  // of what is free, where ranks share one memory

int64_t blocks_of(int64_t tokens, int64_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

int64_t memory_budget(const ipc::WorkerConfig& config, const MemoryAccount& memory,
                      bool ranks_share_memory) {
  if (config.kv_cache_memory_bytes > 0) return config.kv_cache_memory_bytes;
  if (ranks_share_memory) {
    return static_cast<int64_t>(kSharedMemoryShare * static_cast<double>(memory.free) /
                                config.tensor_parallel_size);
  }
  // What may be used of the device, less what is used already.
  const double used = static_cast<double>(memory.total) - static_cast<double>(memory.free);
  const double budget = config.gpu_memory_utilization * static_cast<double>(memory.total) - used;
  return static_cast<int64_t>(std::max(0.0, budget));
}

}  // namespace

std::vector<KvLayer> kv_layers(const Program& program) {
  std::vector<KvLayer> layers;
  for (const Value& value : program.values) {
    if (!value.is_cache()) continue;
    const KvGroup& group = program.kv_groups.at(static_cast<size_t>(value.kv_group));
    layers.push_back({value.layer, value.dtype, group.kv_heads, group.head_dim});
  }
  return layers;
}

int64_t kv_block_bytes(const std::vector<KvLayer>& layers, int64_t block_size) {
  int64_t bytes = 0;
  for (const KvLayer& layer : layers) bytes += layer.block_bytes(block_size);
  return bytes;
}

bool has_fixed_size(const ipc::WorkerConfig& config) {
  return config.num_gpu_blocks_override > 0 || config.kv_cache_memory_bytes > 0;
}

Result<int64_t> choose_num_blocks(const ipc::WorkerConfig& config, int64_t block_bytes,
                                  const MemoryAccount& memory, bool ranks_share_memory) {
  const int64_t one_request = blocks_of(config.max_model_len, config.block_size);
  const int64_t useful = one_request * config.max_num_seqs + 1;
  int64_t blocks = 0;
  std::string reason;
  const char* field = "kv_cache_memory_bytes";
  if (config.num_gpu_blocks_override > 0) {
    field = "num_gpu_blocks_override";
    blocks = config.num_gpu_blocks_override;
    reason = "num_gpu_blocks_override";
  } else {
    const int64_t budget = memory_budget(config, memory, ranks_share_memory);
    blocks = std::min(useful, budget / std::max<int64_t>(block_bytes, 1));
    reason = fmt::format("{} bytes for the KV cache", budget);
  }
  if (blocks >= one_request + 1) return blocks;
  return fail_field(field,
                    "{} gives {} KV blocks of {} tokens ({} bytes each), but one request of "
                    "max_model_len {} needs {} and one is reserved; give more memory or a smaller "
                    "max_model_len",
                    reason, blocks, config.block_size, block_bytes, config.max_model_len,
                    one_request);
}

KvCache::KvCache(Device& device, Stream& stream, std::vector<KvLayer> layers, int64_t block_size,
                 int64_t max_blocks)
    : layers_(std::move(layers)), block_size_(block_size), max_blocks_(max_blocks) {
  REFRAIN_CHECK(max_blocks >= 2, "a KV cache of {} blocks has none beside the reserved one",
                max_blocks);
  int64_t largest = 0;
  for (const KvLayer& layer : layers_) largest = std::max(largest, layer.block_bytes(block_size));
  const auto zeros = device.allocate_pinned(static_cast<size_t>(std::max<int64_t>(largest, 1)));
  std::memset(zeros->data(), 0, zeros->bytes());
  for (const KvLayer& layer : layers_) {
    const auto block = static_cast<size_t>(layer.block_bytes(block_size));
    memory_.push_back(device.reserve(block * static_cast<size_t>(max_blocks), MemoryTag::kKvCache));
    memory_.back()->back(block);
    stream.copy(memory_.back()->data(), zeros->data(), block);
    if (static_cast<size_t>(layer.layer) >= addresses_.size()) {
      addresses_.resize(static_cast<size_t>(layer.layer) + 1, nullptr);
    }
    addresses_[static_cast<size_t>(layer.layer)] = memory_.back()->data();
  }
  stream.synchronize();
}

void KvCache::back(int64_t num_blocks) {
  REFRAIN_CHECK(num_blocks <= max_blocks_, "{} KV blocks of {} with addresses", num_blocks,
                max_blocks_);
  const auto wanted = [&](size_t i) {
    return static_cast<size_t>(layers_[i].block_bytes(block_size_) * num_blocks);
  };
  std::vector<size_t> before;
  for (const auto& memory : memory_) before.push_back(memory->backed());
  size_t layer = 0;
  try {
    for (; layer < layers_.size(); ++layer) memory_[layer]->back(wanted(layer));
  } catch (const OutOfMemory& error) {
    size_t missing = error.missing;
    for (size_t i = layer + 1; i < layers_.size(); ++i) missing += wanted(i) - before[i];
    for (size_t i = 0; i < layers_.size(); ++i) memory_[i]->trim(before[i]);
    throw OutOfMemory(error.what(), missing);
  }
  num_blocks_ = std::max(num_blocks_, num_blocks);
}

}  // namespace refrain::worker
