#pragma once
// The transport of ranks of one machine whose device memory is their processes' memory: a rank
// reads the other process's memory, one copy and no word of the other side (process_vm_readv). A
// process that has ended, or unmapped what is read, is an error. Transfer thread.

#include <sys/types.h>

#include <map>

#include "worker/kv/kv_memory.h"
#include "worker/transfer/sliced_transport.h"

namespace refrain::worker {

class ProcessMemory final : public SlicedTransport {
 public:
  explicit ProcessMemory(const KvMemory& own);

  const char* name() const override { return "the other process's memory"; }
  void describe(ipc::KvExport& own) const override;
  Status import(PeerId peer, const ipc::KvExport& other) override;

 private:
  struct Peer {
    pid_t pid = 0;
    std::vector<uint64_t> regions;
  };
  void drop(PeerId peer) override { peers_.erase(peer); }
  int64_t read_slice(Job& job) override;

  std::vector<uint64_t> regions_;
  std::map<PeerId, Peer> peers_;
};

}  // namespace refrain::worker
