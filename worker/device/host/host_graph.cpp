#include "worker/device/host/host_graph.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace refrain::worker {

namespace {

constexpr size_t kArgAlignment = alignof(std::max_align_t);

struct Fnv1a {
  uint64_t value = 0xcbf29ce484222325u;
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      value = (value ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    }
  }
};

}  // namespace

void Recording::add(kernels::HostFunction function, const void* args, size_t bytes,
                    const char* name, bool single) {
  const size_t offset = (args_.size() + kArgAlignment - 1) / kArgAlignment * kArgAlignment;
  args_.resize(offset + bytes);
  if (bytes > 0) std::memcpy(args_.data() + offset, args, bytes);
  offsets_.push_back(offset);
  nodes_.push_back({function, nullptr, name, static_cast<uint32_t>(bytes), single});
}

void Recording::hold(std::shared_ptr<const void> hold) {
  if (std::find(holds_.begin(), holds_.end(), hold) == holds_.end()) {
    holds_.push_back(std::move(hold));
  }
}

HostGraph::HostGraph(Recording recording, std::shared_ptr<HostMemory> memory)
    : nodes_(std::move(recording.nodes_)),
      args_(std::move(recording.args_)),
      holds_(std::move(recording.holds_)),
      memory_(std::move(memory)) {
  nodes_.shrink_to_fit();
  args_.shrink_to_fit();
  for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i].args = args_.data() + recording.offsets_[i];
  memory_->reserve(bytes(), MemoryTag::kGraphs);
}

HostGraph::~HostGraph() { memory_->release(bytes(), MemoryTag::kGraphs); }

size_t HostGraph::bytes() const {
  return nodes_.capacity() * sizeof(LaunchNode) + args_.capacity();
}

uint64_t HostGraph::digest() const {
  Fnv1a hash;
  for (const LaunchNode& node : nodes_) {
    hash.add(node.name, std::strlen(node.name) + 1);
    hash.add(&node.arg_bytes, sizeof node.arg_bytes);
    hash.add(&node.single, sizeof node.single);
  }
  return hash.value;
}

std::string_view HostGraph::node_name(int index) const {
  return nodes_.at(static_cast<size_t>(index)).name;
}

}  // namespace refrain::worker
