#pragma once
// The transport of machines with a fast network between them (InfiniBand, RoCE, EFA; tcp where
// there is none): UCX reads a peer's registered memory, and chooses the path. It neither encrypts
// nor authenticates: only for networks that are trusted (docs/THREAT_MODEL.md). Transfer thread.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/kv/kv_memory.h"
#include "worker/transfer/transport.h"
#include "worker/transfer/ucx_library.h"

namespace refrain::worker {

class UcxTransport final : public Transport {
 public:
  // Registers the memory, which outlives it. `on_gpu`: it is memory of a GPU.
  // kNotFound: there is no UCX, or one without CUDA.
  static Result<std::unique_ptr<UcxTransport>> open(const KvMemory& own, bool on_gpu);
  ~UcxTransport() override;
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  const char* name() const override { return "ucx"; }
  void describe(ipc::KvExport& own) const override;
  Status import(PeerId peer, const ipc::KvExport& other) override;
  void forget(PeerId peer) override;
  void post(ReadId id, PeerId peer, std::vector<Read> reads) override;
  void cancel(ReadId id) override;
  std::vector<Progress> poll(std::chrono::milliseconds wait) override;
  // poll() returns early when this descriptor is readable.
  void wake_by(int fd) { wake_fd_ = fd; }

 private:
  struct Peer {
    ipc::KvUcx told;
    std::vector<size_t> region_bytes;
    ucp_ep_h ep = nullptr;
    std::vector<ucp_rkey_h> keys;  // by KvUcx::memory
    ucs_status_t lost = UCS_OK;    // why its connection ended, if it has
  };
  struct Job {
    PeerId peer = 0;
    std::vector<Read> reads;  // of at most kPieceBytes
    size_t next = 0;
    size_t under_way = 0;
    int64_t bytes = 0;  // that came and were not told
    std::string error;  // it ends with this when nothing is under way
  };
  struct Piece {  // of a job, under way
    UcxTransport* transport = nullptr;
    ReadId job = 0;
    size_t bytes = 0;
  };

  explicit UcxTransport(std::unique_ptr<UcxLibrary> library) : ucx_(std::move(library)) {}
  Status start(const KvMemory& own, bool on_gpu);
  Status register_memory(const KvMemory& own);
  Status connect(Peer& peer);   // where it is not
  void disconnect(Peer& peer);  // waits for its reads, which then end
  void get_on();
  void read(ReadId id, Job& job, Peer& peer);
  void ended(const Piece& piece, ucs_status_t status);
  std::vector<Progress> take_progress();
  void wait_for(std::chrono::milliseconds wait);
  std::string text(ucs_status_t status) const { return ucx_->status_string(status); }

  std::unique_ptr<UcxLibrary> ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucs_memory_type_t memory_type_ = UCS_MEMORY_TYPE_HOST;
  int event_fd_ = -1, wake_fd_ = -1;
  std::vector<ucp_mem_h> registered_;
  ipc::KvUcx own_;
  std::map<PeerId, Peer> peers_;
  std::map<ReadId, Job> jobs_;
};

}  // namespace refrain::worker
