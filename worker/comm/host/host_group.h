#pragma once
// The group of a host communicator: who is in it, and the meeting in which every rank posts what it
// is about to do, gets the data of all and compares. A rank that disagrees, has left, has died or
// does not come in time is named in a DeviceError; nothing waits for ever. Over shared memory or
// over tcp, chosen by where the ranks are (join_group). Device thread's team.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "kernels/core/dtype.h"
#include "runtime/base/result.h"
#include "worker/comm/communicator.h"

namespace refrain::worker {

enum class Collective : uint32_t { kAllReduce, kAllGather, kBroadcast, kBarrier, kReduceScatter };
const char* to_string(Collective collective);

// What a rank says before it exchanges data. Equal on every rank, or the group ends.
struct Post {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  int32_t root = -1;  // of a broadcast; of a part of a reduce_scatter, whose it is
  uint64_t rows = 0;  // live rows of this exchange
  uint64_t cols = 0;
  bool operator==(const Post&) const = default;
};
std::string describe(const Post& post);

class HostGroup {
 public:
  static constexpr int kMaxRanks = 64;
  // Bytes one rank can put into one exchange; larger data goes in several.
  static constexpr size_t kSlotBytes = size_t{256} << 10;
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~HostGroup() = default;
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  virtual bool shares_memory() const = 0;
  virtual size_t bytes() const = 0;
  // More threads in the group than cores they may use together.
  bool crowded() const { return crowded_; }

  // One exchange: every thread of the team writes its share of slot_to_fill(); one thread meets;
  // every thread reads slot_of(r). The slots of an exchange stay valid until the next but one.
  std::byte* slot_to_fill() const { return slot(rank(), sequence_ + 1); }
  void meet(const Post& post);  // throws DeviceError
  const std::byte* slot_of(int rank) const { return slot(rank, sequence_); }
  // Names the first rank that left or whose process is gone; empty while all are there. Tells the
  // others of one that is gone; of one that left they know, and an exchange in which it took part
  // goes on.
  virtual std::string find_missing() = 0;

 protected:
  explicit HostGroup(const GroupOptions& options) : options_(options) {}
  static constexpr size_t bytes_of_slots(int size) {
    return static_cast<size_t>(size) * 2 * kSlotBytes;
  }

  // Until every rank has come to the meeting after sequence_ with what it posts, and its data is in
  // its slot. Throws DeviceError.
  virtual void exchange(const Post& post, Deadline deadline) = 0;
  virtual const Post& post_of(int peer) const = 0;  // at that meeting
  // So that the other ranks do not wait for their deadline.
  virtual void tell(const std::string& reason) = 0;

  std::byte* slot(int rank, uint32_t sequence) const {
    return slots_ + (static_cast<size_t>(rank) * 2 + (sequence & 1)) * kSlotBytes;
  }
  Deadline deadline() const;
  [[noreturn]] void give_up(const std::string& reason);
  [[noreturn]] void stop(const std::string& reason);  // as give_up(), but the others know

  const GroupOptions options_;
  std::byte* slots_ = nullptr;  // [size][2][kSlotBytes]
  uint32_t sequence_ = 0;       // of the last completed meeting; written between two launches only
  bool crowded_ = false;
  std::string broken_;  // why no further exchange is possible

 private:
  void compare(int peer, const Post& mine);
};

Status check_group(const GroupOptions& options);  // its rank and size

// Over shared memory where options.meet says that all ranks share this one's, else over tcp.
// `threads`: of this rank's team.
Result<std::unique_ptr<HostGroup>> join_group(const GroupOptions& options, int threads);

}  // namespace refrain::worker
