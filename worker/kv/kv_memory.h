#pragma once
// Where a rank's paged blocks lie and what is in them, for those who move blocks between groups
// without knowing what they hold. A record; the memory is the caches'.

#include <cstddef>
#include <vector>

#include "ipc/protocol/kv_transfer.h"
#include "worker/kv/kv_cache.h"

namespace refrain::worker {

struct KvMemory {
  std::vector<ipc::KvStates> states;  // by state group; one of slots has no layers
  std::vector<std::byte*> regions;    // by state group and layer: block after block
  // A word for each region that says which step has written it last (kernels/core/layer_flag.h), in
  // device memory; null: nothing is said while a step runs.
  std::byte* flags = nullptr;

  std::vector<std::byte*> all_regions() const;  // and behind them, where there are any, the flags
  // Of the state group, where its first layer's region stands.
  size_t first_region(size_t group) const;
  size_t flag_bytes() const { return flags == nullptr ? 0 : regions.size() * sizeof(uint64_t); }
};

// By region, as KvMemory::regions has them; with flags (a word a region) those as one more.
std::vector<size_t> region_sizes(const std::vector<ipc::KvStates>& states, bool flags);

// Adds `count` state groups of the Program, from its `first` on, with so many blocks each.
void add_states(const Program& program, const KvCache& cache, int64_t block_size, size_t first,
                size_t count, KvMemory& memory);

}  // namespace refrain::worker
