#pragma once
// The shared-memory side of a host communicator: who is in the group, and the meeting in which
// every rank posts what it is about to do and compares. A rank that disagrees, has left, has died
// or does not come in time is named in a DeviceError; nothing waits for ever. Device thread's team.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "ipc/shm/segment.h"
#include "kernels/core/dtype.h"
#include "runtime/base/result.h"
#include "worker/device/host/wait.h"

namespace refrain::worker {

enum class Collective : uint32_t { kAllReduce, kAllGather, kBroadcast, kBarrier };
const char* to_string(Collective collective);

// What a rank says before it exchanges data. Equal on every rank, or the group ends.
struct Post {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  int32_t root = -1;  // of a broadcast
  uint64_t rows = 0;  // live rows of this exchange
  uint64_t cols = 0;
  bool operator==(const Post&) const = default;
};
std::string describe(const Post& post);

struct GroupSegment;  // the layout in shared memory; host_group.cpp

class HostGroup {
 public:
  static constexpr int kMaxRanks = 64;
  // Bytes one rank can put into one exchange; larger data goes in several.
  static constexpr size_t kSlotBytes = size_t{256} << 10;

  struct Options {
    std::string token;
    int rank = 0;
    int size = 1;
    int timeout_ms = 0;  // of joining and of every meeting
    int threads = 1;     // of this rank's team
  };
  static Result<std::unique_ptr<HostGroup>> join(const Options& options);
  ~HostGroup();
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  size_t bytes() const { return segment_->bytes(); }
  // More threads in the group than cores they may use together.
  bool crowded() const { return crowded_; }

  // One exchange: every thread of the team writes its share of slot_to_fill(); one thread meets;
  // every thread reads slot_of(r). The slots of an exchange stay valid until the next but one.
  std::byte* slot_to_fill() const { return slot(rank(), sequence_ + 1); }
  void meet(const Post& post);  // throws DeviceError
  // Names the first rank that left or whose process is gone, and tells the others; empty while all
  // are there.
  std::string find_missing();
  const std::byte* slot_of(int rank) const { return slot(rank, sequence_); }

 private:
  HostGroup(const Options& options, std::unique_ptr<ipc::SharedSegment> segment)
      : options_(options), segment_(std::move(segment)) {}
  Status enter(std::chrono::steady_clock::time_point deadline);
  Status await_everyone(std::chrono::steady_clock::time_point deadline);
  void count_cores();
  GroupSegment& shared() const { return *static_cast<GroupSegment*>(segment_->data()); }
  std::byte* slot(int rank, uint32_t sequence) const;
  bool gone(int peer) const;
  void await(int peer, const Post& post, std::chrono::steady_clock::time_point deadline);
  void compare(int peer, const Post& mine);
  std::string told_by(uint32_t by) const;
  void tell(const std::string& reason);
  [[noreturn]] void give_up(const std::string& reason);

  Options options_;
  std::unique_ptr<ipc::SharedSegment> segment_;
  uint32_t sequence_ = 0;  // of the last completed meeting; written between two launches only
  bool crowded_ = false;
  bool entered_ = false;
  std::string broken_;  // why no further exchange is possible
};

}  // namespace refrain::worker
