#pragma once
// The transport of ranks of one machine whose device memory is their processes' memory: a rank
// reads the other process's memory, one copy and no word of the other side (process_vm_readv). A
// process that has ended, or unmapped what is read, is an error. Transfer thread.

#include <sys/types.h>

#include <deque>
#include <map>

#include "worker/kv/kv_memory.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

class ProcessMemory final : public Transport {
 public:
  explicit ProcessMemory(const KvMemory& own);

  const char* name() const override { return "the other process's memory"; }
  void describe(ipc::KvExport& own) const override;
  Status import(PeerId peer, const ipc::KvExport& other) override;
  void forget(PeerId peer) override;
  void post(ReadId id, PeerId peer, std::vector<Read> reads) override;
  void cancel(ReadId id) override;
  std::vector<Progress> poll(std::chrono::milliseconds wait) override;  // a slice; never waits

 private:
  struct Peer {
    pid_t pid = 0;
    std::vector<uint64_t> regions;
  };
  struct Job {
    ReadId id = 0;
    PeerId peer = 0;
    std::vector<Read> reads;
    size_t next = 0;
    std::string error;  // it ends with this
  };
  int64_t read_slice(Job& job);

  std::vector<uint64_t> regions_;
  std::map<PeerId, Peer> peers_;
  std::deque<Job> jobs_;
};

}  // namespace refrain::worker
