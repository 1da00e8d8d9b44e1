#include "worker/kv/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "ipc/protocol/state_blocks.h"
#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

constexpr double kSharedMemoryShare = 0.25;  // of what is free, where ranks share one memory

// Of a request of max_model_len.
int64_t one_request(const ipc::WorkerConfig& config, const ipc::StateGroup& group) {
  const int32_t ahead = config.draft_model ? config.num_speculative_tokens : 0;
  return ipc::most_blocks(group.window, config.max_model_len, config.max_num_batched_tokens + ahead,
                          config.block_size);
}

bool is_paged(const ipc::StateGroup& group) { return group.kind == ipc::StateKind::kPaged; }

// a * b / c without overflow.
int64_t scaled(int64_t a, int64_t b, int64_t c) {
  return static_cast<int64_t>(static_cast<__int128>(a) * b / std::max<int64_t>(c, 1));
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

std::vector<PagedLayer> paged_layers(const Program& program) {
  std::vector<PagedLayer> layers;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (!value.is_paged()) continue;
    layers.push_back(
        {value.layer, value.group, static_cast<ValueId>(i), program.group_of(value).paged});
  }
  return layers;
}

int64_t num_checkpoints(const Program& program) {
  return int64_t{prepare_op(program).limits.max_reqs} + 1;
}

std::vector<ipc::StateGroup> describe_groups(const Program& program, int64_t block_size) {
  std::vector<ipc::StateGroup> groups;
  for (const StateGroup& group : program.states) {
    const bool paged = group.kind == StateKind::kPaged;
    const int64_t layer = paged ? group.paged.token_bytes() * block_size : group.slot.bytes();
    groups.push_back({.name = group.name,
                      .kind = group.kind,
                      .window = static_cast<int32_t>(group.window),
                      .bytes = layer * static_cast<int64_t>(group.layers.size()),
                      .num_blocks = paged ? 0 : num_checkpoints(program)});
  }
  return groups;
}

bool has_fixed_size(const ipc::WorkerConfig& config) {
  return config.num_gpu_blocks_override > 0 || config.kv_cache_memory_bytes > 0;
}

Status choose_num_blocks(const ipc::WorkerConfig& config, const MemoryAccount& memory,
                         bool ranks_share_memory, std::vector<ipc::StateGroup>& groups) {
  int64_t request_bytes = 0;
  for (const ipc::StateGroup& group : groups) {
    if (is_paged(group)) request_bytes += one_request(config, group) * group.bytes;
  }
  const int64_t budget = memory_budget(config, memory, ranks_share_memory);
  for (ipc::StateGroup& group : groups) {
    if (!is_paged(group)) continue;
    const int64_t needed = one_request(config, group);
    std::string reason;
    const char* field = "kv_cache_memory_bytes";
    if (config.num_gpu_blocks_override > 0) {
      field = "num_gpu_blocks_override";
      group.num_blocks = config.num_gpu_blocks_override;
      reason = "num_gpu_blocks_override";
    } else {
      group.num_blocks =
          std::min(needed * config.max_num_seqs + 1, scaled(budget, needed, request_bytes));
      reason = fmt::format("{} bytes for the KV cache", budget);
    }
    if (group.num_blocks >= needed + 1) continue;
    return fail_field(field,
                      "{} gives {} KV blocks of {} tokens ({} bytes each) to {}, but one request "
                      "of max_model_len {} needs {} and one is reserved; give more memory or a "
                      "smaller max_model_len",
                      reason, group.num_blocks, config.block_size, group.bytes, group.name,
                      config.max_model_len, needed);
  }
  return {};
}

std::vector<int64_t> fewer_blocks(const ipc::WorkerConfig& config,
                                  const std::vector<ipc::StateGroup>& groups,
                                  const std::vector<int64_t>& blocks, size_t missing) {
  int64_t all = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (is_paged(groups[i])) all += blocks[i] * groups[i].bytes;
  }
  std::vector<int64_t> fewer = blocks;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!is_paged(groups[i])) continue;
    // Each gives of its own what it has of the whole.
    fewer[i] -= scaled(static_cast<int64_t>(missing), blocks[i], all) + 1;
    if (fewer[i] < one_request(config, groups[i]) + 1) return {};
  }
  return fewer;
}

KvCache::KvCache(Device& device, Stream& stream, const Program& program, int64_t block_size,
                 std::vector<int64_t> max_blocks)
    : layers_(paged_layers(program)),
      block_size_(block_size),
      max_blocks_(std::move(max_blocks)),
      num_blocks_(max_blocks_.size(), 0),
      addresses_(program.values.size(), nullptr) {
  REFRAIN_CHECK(max_blocks_.size() == program.states.size(), "blocks of {} state groups, not {}",
                max_blocks_.size(), program.states.size());
  int64_t largest = 0;
  for (const PagedLayer& layer : layers_) {
    const auto group = static_cast<size_t>(layer.group);
    REFRAIN_CHECK(max_blocks_[group] >= 2,
                  "a KV cache of {} blocks has none beside the reserved one", max_blocks_[group]);
    num_blocks_[group] = 1;
    largest = std::max(largest, layer.block_bytes(block_size));
  }
  const auto zeros = device.allocate_pinned(static_cast<size_t>(std::max<int64_t>(largest, 1)));
  std::memset(zeros->data(), 0, zeros->bytes());
  for (const PagedLayer& layer : layers_) {
    const auto block = static_cast<size_t>(layer.block_bytes(block_size));
    memory_.push_back(device.reserve(bytes(layer, max_blocks_), MemoryTag::kKvCache));
    memory_.back()->back(block);
    stream.copy(memory_.back()->data(), zeros->data(), block);
    addresses_[static_cast<size_t>(layer.value)] = memory_.back()->data();
  }
  stream.synchronize();
}

void KvCache::back(const std::vector<int64_t>& num_blocks) {
  for (size_t group = 0; group < num_blocks.size(); ++group) {
    REFRAIN_CHECK(num_blocks[group] <= max_blocks_[group], "{} KV blocks of {} with addresses",
                  num_blocks[group], max_blocks_[group]);
  }
  std::vector<size_t> before;
  for (const auto& memory : memory_) before.push_back(memory->backed());
  size_t at = 0;
  try {
    for (; at < layers_.size(); ++at) memory_[at]->back(bytes(layers_[at], num_blocks));
  } catch (const OutOfMemory& error) {
    size_t missing = error.missing;
    for (size_t i = at + 1; i < layers_.size(); ++i) {
      missing += bytes(layers_[i], num_blocks) - before[i];
    }
    for (size_t i = 0; i < layers_.size(); ++i) memory_[i]->trim(before[i]);
    throw OutOfMemory(error.what(), missing);
  }
  for (size_t group = 0; group < num_blocks.size(); ++group) {
    num_blocks_[group] = std::max(num_blocks_[group], num_blocks[group]);
  }
}

}  // namespace refrain::worker
