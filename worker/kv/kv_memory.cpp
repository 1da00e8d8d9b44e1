#include "worker/kv/kv_memory.h"

namespace refrain::worker {

std::vector<std::byte*> KvMemory::all_regions() const {
  std::vector<std::byte*> all = regions;
  if (flags != nullptr) all.push_back(flags);
  return all;
}

size_t KvMemory::first_region(size_t group) const {
  size_t first = 0;
  for (size_t i = 0; i < group; ++i) first += static_cast<size_t>(states[i].num_layers);
  return first;
}

std::vector<size_t> region_sizes(const std::vector<ipc::KvStates>& states, bool flags) {
  std::vector<size_t> sizes;
  for (const ipc::KvStates& group : states)
    sizes.insert(sizes.end(), static_cast<size_t>(group.num_layers),
                 static_cast<size_t>(group.num_blocks * group.block_bytes()));
  if (flags) sizes.push_back(sizes.size() * sizeof(uint64_t));
  return sizes;
}

void add_states(const Program& program, const KvCache& cache, int64_t block_size, size_t first,
                size_t count, KvMemory& memory) {
  for (size_t group = first; group < first + count; ++group) {
    ipc::KvStates& states = memory.states.emplace_back();
    if (program.states[group].kind != StateKind::kPaged) continue;
    states.num_blocks = cache.num_blocks()[group];
    for (const PagedPart& part : program.states[group].paged.parts)
      states.parts.push_back(
          {part.name, part.first_unit, part.units, part.unit_bytes() * block_size});
    for (const PagedLayer& layer : cache.layers()) {
      if (layer.group != static_cast<int>(group)) continue;
      memory.regions.push_back(cache.address(layer));
      ++states.num_layers;
    }
  }
}

}  // namespace refrain::worker
