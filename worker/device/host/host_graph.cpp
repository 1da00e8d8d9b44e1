#include "worker/device/host/host_graph.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/device/digest.h"

namespace refrain::worker {

namespace {

constexpr size_t kArgAlignment = alignof(std::max_align_t);

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
  Digest digest;
  for (const LaunchNode& node : nodes_) {
    digest.add(std::string_view(node.name));
    digest.add(uint64_t{node.arg_bytes});
    digest.add(uint64_t{node.single});
  }
  return digest.value();
}

std::string_view HostGraph::node_name(int index) const {
  return nodes_.at(static_cast<size_t>(index)).name;
}

}  // namespace refrain::worker
