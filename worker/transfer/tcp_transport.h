#pragma once
// The transport that works everywhere: a rank asks a peer for pieces of its regions and gets them
// in frames with a checksum, a few at a time, so that no queue overflows. The connections are those
// of ipc::RankSockets: encrypted, and open to told keys alone. Device memory that is not the
// process's own goes through pinned memory. Transfer thread.

#include <map>
#include <memory>
#include <span>

#include "ipc/transport/rank_sockets.h"
#include "worker/device/device.h"
#include "worker/kv/kv_memory.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

class TcpTransport final : public Transport {
 public:
  static constexpr size_t kChunk = size_t{1} << 20;  // of payload, in a frame; and of `pinned`

  // `copier` and `pinned` (kChunk bytes) are for device memory and outlive it.
  static Result<std::unique_ptr<TcpTransport>> listen(const std::string& address, KvMemory own,
                                                      Copier& copier, Buffer& pinned);

  const char* name() const override { return "tcp"; }
  void describe(ipc::KvExport& own) const override;
  Status import(PeerId peer, const ipc::KvExport& other) override;
  void forget(PeerId peer) override;
  void post(ReadId id, PeerId peer, std::vector<Read> reads) override;
  void cancel(ReadId id) override;
  std::vector<Progress> poll(std::chrono::milliseconds wait) override;
  // poll() returns early when this descriptor is readable.
  void wake_by(int fd) { sockets_->wake_by(fd); }

 private:
  struct Peer {
    ipc::RankAddress address;
    int connection = -1;
    int asked = 0;  // chunks that have not come
  };
  struct Job {
    PeerId peer = 0;
    std::vector<Read> reads;  // of at most kChunk bytes
    size_t next = 0;          // the first that was not asked for
    int asked = 0;
  };
  struct Chunk {  // reads [begin, end) of a job
    ReadId job = 0;
    size_t begin = 0, end = 0, bytes = 0;
  };

  TcpTransport(std::unique_ptr<ipc::RankSockets> sockets, KvMemory own, Copier& copier,
               Buffer& pinned);
  Status connect(Peer& peer);
  void ask();
  bool ask_chunk(ReadId id, Job& job, Peer& peer);
  void take(const ipc::RankSockets::Frame& frame);
  void answer(int connection, uint64_t chunk, std::span<const std::byte> body);
  void take_data(uint64_t id, uint32_t crc, std::span<const std::byte> body);
  void end(ReadId id, std::string error);
  void check_connections();

  std::unique_ptr<ipc::RankSockets> sockets_;
  KvMemory own_;
  std::vector<size_t> region_bytes_;
  Copier& copier_;
  Buffer& pinned_;
  std::map<PeerId, Peer> peers_;
  std::map<int, PeerId> peer_of_;  // by connection
  int next_connection_ = 0;
  std::map<ReadId, Job> jobs_;
  std::map<uint64_t, Chunk> chunks_;  // asked for
  uint64_t next_chunk_ = 1;
  std::vector<Progress> progress_;
};

}  // namespace refrain::worker
