#pragma once
// The transport of ranks of one machine whose device memory other processes can map: a rank maps
// the other's blocks and its own device copies them, without a word of the other side and through
// no host. The mapping keeps the memory, so that a process that has ended is read as it was left;
// what was read is worth something only with the other group's COMMIT. Transfer thread.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "worker/device/copier.h"
#include "worker/kv/kv_memory.h"
#include "worker/transfer/sliced_transport.h"

namespace refrain::worker {

class DeviceMemory final : public SlicedTransport {
 public:
  using Share = std::function<std::vector<SharedPiece>(const void* begin, size_t bytes)>;
  // `share` is Device::share. Null: it gives no memory to other processes. `copier` outlives it.
  static std::unique_ptr<DeviceMemory> make(const Share& share, const KvMemory& own,
                                            Copier& copier);

  const char* name() const override { return "the other process's device memory"; }
  void describe(ipc::KvExport& own) const override;
  Status import(PeerId peer, const ipc::KvExport& other) override;

 private:
  struct Mapping {
    uint64_t address = 0, bytes = 0;  // in the other process
    std::unique_ptr<MappedMemory> memory;
  };
  struct Peer {
    std::vector<Mapping> mappings;
    std::vector<const std::byte*> regions;  // here
    size_t flags = SIZE_MAX;                // the region that holds words of its steps
  };
  explicit DeviceMemory(Copier& copier) : copier_(copier) {}
  Status map_run(int pidfd, std::span<const ipc::KvPiece> run, Peer& peer);
  // Slices are whole when they have been read: nothing is read from a peer that is dropped.
  void drop(PeerId peer) override { peers_.erase(peer); }
  int64_t read_slice(Job& job) override;

  Copier& copier_;
  std::vector<uint64_t> regions_;
  std::vector<SharedPiece> pieces_;
  std::map<PeerId, Peer> peers_;
};

}  // namespace refrain::worker
