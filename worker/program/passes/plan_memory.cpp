#include <algorithm>
#include <limits>
#include <numeric>

#include "worker/program/passes/passes.h"

// Offline best fit by size: values live at the same time never overlap; the largest are placed
// first, each into the smallest gap that holds it. A value changed in place keeps its storage.

namespace refrain::worker {
namespace {

constexpr int64_t kAlignment = 256;

// One stretch of the arena: a value, or several that follow each other in place.
struct Block {
  std::vector<ValueId> values;
  int64_t bytes = 0;
  int first = std::numeric_limits<int>::max(), last = -1;  // ops, inclusive
  int64_t offset = -1;
  bool overlaps(const Block& other) const { return first <= other.last && other.first <= last; }
};

bool in_arena(const Value& value) { return value.storage == Storage::kArena; }

int64_t bytes_of(const Value& value, const ExtentSizes& sizes) {
  const int64_t bytes =
      value.rows.resolve(sizes) * value.cols * static_cast<int64_t>(size_of(value.dtype));
  return std::max<int64_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
}

// The block each value belongs to; -1 outside the arena.
std::vector<int> storage_classes(const Program& program, int& num_blocks) {
  std::vector<int> parent(program.values.size());
  std::iota(parent.begin(), parent.end(), 0);
  for (const Op& op : program.ops)
    for (const InPlace& pair : in_place(op))
      parent[static_cast<size_t>(pair.to)] = parent[static_cast<size_t>(pair.from)];
  std::vector<int> index(program.values.size(), -1), classes(program.values.size(), -1);
  num_blocks = 0;
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (!in_arena(program.values[i])) continue;
    int& block = index[static_cast<size_t>(parent[i])];
    if (block < 0) block = num_blocks++;
    classes[i] = block;
  }
  return classes;
}

std::vector<Block> find_blocks(const Program& program, const ExtentSizes& sizes) {
  int num_blocks = 0;
  const std::vector<int> classes = storage_classes(program, num_blocks);
  std::vector<Block> blocks(static_cast<size_t>(num_blocks));
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (classes[i] < 0) continue;
    Block& block = blocks[static_cast<size_t>(classes[i])];
    block.values.push_back(static_cast<ValueId>(i));
    block.bytes = std::max(block.bytes, bytes_of(program.values[i], sizes));
    if (program.values[i].kind == ValueKind::kOutput) {  // outlives the step: shares with nobody
      block.first = 0;
      block.last = static_cast<int>(program.ops.size());
    }
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const auto touch = [&](ValueId id) {
      const int block_index = classes[static_cast<size_t>(id)];
      if (block_index < 0) return;
      Block& block = blocks[static_cast<size_t>(block_index)];
      block.first = std::min(block.first, static_cast<int>(i));
      block.last = std::max(block.last, static_cast<int>(i));
    };
    for (const ValueId id : reads(program.ops[i])) touch(id);
    for (const ValueId id : writes(program.ops[i])) touch(id);
  }
  return blocks;
}

// The smallest gap between the placed blocks that live at the same time; else behind them all.
int64_t best_offset(const Block& block, const std::vector<const Block*>& placed) {
  std::vector<const Block*> others;
  for (const Block* other : placed)
    if (block.overlaps(*other)) others.push_back(other);
  std::sort(others.begin(), others.end(),
            [](const Block* a, const Block* b) { return a->offset < b->offset; });
  int64_t end = 0, best = -1, best_gap = std::numeric_limits<int64_t>::max();
  for (const Block* other : others) {
    const int64_t gap = other->offset - end;
    if (gap >= block.bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, other->offset + other->bytes);
  }
  return best >= 0 ? best : end;
}

}  // namespace

MemoryPlan plan_memory(const Program& program, const ExtentSizes& sizes) {
  std::vector<Block> blocks = find_blocks(program, sizes);
  std::vector<Block*> order;
  order.reserve(blocks.size());
  for (Block& block : blocks) order.push_back(&block);
  std::stable_sort(order.begin(), order.end(),
                   [](const Block* a, const Block* b) { return a->bytes > b->bytes; });
  MemoryPlan plan;
  plan.offsets.assign(program.values.size(), -1);
  for (const Value& value : program.values)
    if (in_arena(value)) plan.bytes_without_reuse += static_cast<size_t>(bytes_of(value, sizes));
  std::vector<const Block*> placed;
  for (Block* block : order) {
    block->offset = best_offset(*block, placed);
    placed.push_back(block);
    plan.bytes = std::max(plan.bytes, static_cast<size_t>(block->offset + block->bytes));
    for (const ValueId id : block->values) plan.offsets[static_cast<size_t>(id)] = block->offset;
  }
  return plan;
}

}  // namespace refrain::worker
