#pragma once
// A host graph: launches with copied arguments in one array. Immutable once made; replayed by the
// device thread in one dispatch to the team. Holds the communicators whose operations it contains.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "worker/device/device.h"
#include "worker/device/host/host_memory.h"
#include "worker/device/host/thread_team.h"

namespace refrain::worker {

// Launches as they are recorded; arguments are packed into one growing block.
class Recording {
 public:
  void add(kernels::HostFunction function, const void* args, size_t bytes, const char* name,
           bool single);
  // Keeps `hold` alive as long as the graph.
  void hold(std::shared_ptr<const void> hold);

 private:
  friend class HostGraph;
  std::vector<LaunchNode> nodes_;
  std::vector<size_t> offsets_;  // of each node's arguments
  std::vector<std::byte> args_;
  std::vector<std::shared_ptr<const void>> holds_;
};

class HostGraph final : public Graph {
 public:
  // Throws OutOfMemory when the device's limit leaves no room.
  HostGraph(Recording recording, std::shared_ptr<HostMemory> memory);
  ~HostGraph() override;

  int num_nodes() const override { return static_cast<int>(nodes_.size()); }
  size_t bytes() const override;
  uint64_t digest() const override;
  uint64_t launch_digest() const override { return digest(); }
  std::string_view node_name(int index) const override;
  std::span<const LaunchNode> nodes() const { return nodes_; }

 private:
  std::vector<LaunchNode> nodes_;
  std::vector<std::byte> args_;
  std::vector<std::shared_ptr<const void>> holds_;
  std::shared_ptr<HostMemory> memory_;
};

}  // namespace refrain::worker
