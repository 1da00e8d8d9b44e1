#pragma once
// A made-up model's blocks as the ranks of a group hold them: every word of eight bytes follows
// from its layer, block, part, unit and place, so that a byte in a wrong place is seen.

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/core/layer_flag.h"
#include "worker/kv/kv_memory.h"

namespace refrain::worker {

struct Shape {
  int layers = 3;
  int64_t blocks = 7;
  int64_t units = 5;          // of the parts that are split
  int64_t unit_bytes = 24;    // whole words, as of the next
  int64_t latent_bytes = 40;  // of a part that every rank has
};

// One rank's, of `size` ranks.
class Shard {
 public:
  Shard(const Shape& shape, int rank, int size, int salt) {
    const int64_t each = shape.units / size, more = shape.units % size;
    const int64_t first = rank * each + std::min<int64_t>(rank, more);
    const int64_t units = each + (rank < more ? 1 : 0);
    memory.states.push_back({shape.layers,
                             shape.blocks,
                             {{"k", first, units, shape.unit_bytes},
                              {"latent", 0, 1, shape.latent_bytes},
                              {"v", first, units, shape.unit_bytes}}});
    memory.states.push_back({1, shape.blocks, {{"scales", first, units, 8}}});
    for (const size_t bytes : region_sizes(memory.states, false))
      words_.emplace_back(bytes / sizeof(uint64_t));
    for (auto& region : words_)
      memory.regions.push_back(reinterpret_cast<std::byte*>(region.data()));
    flags_.assign(words_.size(), 0);
    memory.flags = reinterpret_cast<std::byte*>(flags_.data());
    each_word([&](uint64_t& word, size_t, int64_t block, uint64_t place) {
      word = content(salt, block, place);
    });
  }
  Shard(const Shard&) = delete;

  // Whether block `to` of these regions has what block `from` of a group with `salt` has.
  bool holds(size_t first_region, size_t regions, int64_t to, int salt, int64_t from) {
    bool equal = true;
    each_word([&](uint64_t word, size_t region, int64_t block, uint64_t place) {
      if (block == to && region >= first_region && region < first_region + regions)
        equal = equal && word == content(salt, from, place);
    });
    return equal;
  }

  // A step writes a layer, and says so.
  void write(size_t region, int salt) {
    each_word([&](uint64_t& word, size_t at, int64_t block, uint64_t place) {
      if (at == region) word = content(salt, block, place);
    });
  }
  void pass(size_t region, uint32_t step) {
    std::atomic_ref(flags_[region]).store(kernels::layer_flag(step), std::memory_order_release);
  }

  KvMemory memory;

 private:
  static uint64_t content(int salt, int64_t block, uint64_t place) {
    uint64_t hash =
        (place * 1000003 + static_cast<uint64_t>(block)) * 31 + static_cast<uint64_t>(salt);
    hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9ULL;
    return hash ^ (hash >> 32);
  }
  template <class Call>
  void each_word(const Call& call) {
    for (size_t group = 0, region = 0; group < memory.states.size(); ++group) {
      const ipc::KvStates& states = memory.states[group];
      for (int layer = 0; layer < states.num_layers; ++layer, ++region) {
        uint64_t* at = words_[region].data();
        for (int64_t block = 0; block < states.num_blocks; ++block)
          for (size_t part = 0; part < states.parts.size(); ++part) {
            const auto& [name, first_unit, units, unit_bytes] = states.parts[part];
            const int64_t words = unit_bytes / int64_t{sizeof(uint64_t)};
            // The same in every group, however its ranks share the units.
            uint64_t place =
                (region * 16 + part) * 1000000 + static_cast<uint64_t>(first_unit * words);
            for (int64_t i = 0; i < units * words; ++i) call(*at++, region, block, place++);
          }
      }
    }
  }

  std::vector<std::vector<uint64_t>> words_;
  std::vector<uint64_t> flags_;
};

inline ipc::KvExport export_of(const KvMemory& memory) {
  ipc::KvExport own;
  own.states = memory.states;
  own.layer_flags = memory.flags != nullptr;
  return own;
}

}  // namespace refrain::worker
