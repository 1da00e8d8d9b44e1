#pragma once
// How bytes come from the memory of a rank of another group. A transport tells where the own memory
// can be read (describe), learns of peers (import), and reads: what is posted is written until it
// is reported as ended, a cancelled read's bytes too. One thread, the transfer thread.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/protocol/kv_transfer.h"
#include "runtime/base/result.h"

namespace refrain::worker {

using ReadId = uint64_t;
using PeerId = int32_t;

// Bytes of a peer's region (KvExport::regions) that go to this rank's device memory.
struct Read {
  uint64_t region = 0;
  uint64_t offset = 0;
  std::byte* to = nullptr;
  size_t bytes = 0;
  bool operator==(const Read&) const = default;
};

// Why a read ended without its bytes.
inline constexpr const char* kPeerGone = "the group that has the blocks is gone";
inline constexpr const char* kCancelled = "cancelled";

class Transport {
 public:
  struct Progress {
    ReadId id = 0;
    int64_t bytes = 0;   // more since the last one
    bool ended = false;  // nothing of it is written any more
    std::string error;   // ended: why not all is there; empty: it is
  };

  virtual ~Transport() = default;  // ends all that was posted
  virtual const char* name() const = 0;
  // Adds to the own export what a peer needs.
  virtual void describe(ipc::KvExport& own) const = 0;
  // Whether the peer can be reached by this transport; kUnavailable: it cannot, and why.
  virtual Status import(PeerId peer, const ipc::KvExport& other) = 0;
  virtual void forget(PeerId peer) = 0;  // its reads end with an error
  // Begins; the reads of one post may be done in any order.
  virtual void post(ReadId id, PeerId peer, std::vector<Read> reads) = 0;
  virtual void cancel(ReadId id) = 0;  // it ends soon, with an error if it has not ended before
  // Gets on with what was posted and answers peers. Waits for at most `wait` where it has nothing
  // to do until something comes.
  virtual std::vector<Progress> poll(std::chrono::milliseconds wait) = 0;
};

}  // namespace refrain::worker
