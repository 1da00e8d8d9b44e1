#include "worker/device/host/host_group.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "worker/device/device.h"

namespace refrain::worker {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr uint32_t kMagic = 0x70726772;
constexpr milliseconds kSleepSlice{50};  // between two looks at whether a peer still lives

// Identifies the process-id namespace, so that a peer's pid is only looked up in its own.
uint64_t pid_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::string segment_name(const std::string& token) {
  std::string name = "refrain-" + token;
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; },
      '_');
  return name;
}

}  // namespace

struct alignas(64) RankState {
  std::atomic<uint32_t> joined;  // 0, or 1 + threads of the rank's team
  std::atomic<uint32_t> left;    // 1 when its communicator is gone
  int64_t pid;
  uint64_t pid_namespace;
  cpu_set_t cores;
  WakeWord sequence;  // of the last post
  Post posts[2];      // by parity of the sequence
};

struct GroupSegment {
  std::atomic<uint32_t> magic;  // written last by rank 0
  uint32_t size;
  std::atomic<uint32_t> broken_by;  // 1 + rank that gave up first; its reason is complete
  std::atomic<uint32_t> breaking;   // taken by that rank
  char reason[512];
  RankState ranks[HostGroup::kMaxRanks];
  // then the slots: [size][2][kSlotBytes]
};

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string describe(const Post& post) {
  std::string text = to_string(post.collective);
  if (post.collective == Collective::kBarrier) return text;
  text += fmt::format(" of {} x {} {}", post.rows, post.cols, refrain::to_string(post.dtype));
  if (post.root >= 0) text += fmt::format(" from rank {}", post.root);
  return text;
}

Result<std::unique_ptr<HostGroup>> HostGroup::join(const Options& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    return fail(ErrorCode::kInvalidArgument, "a host group has 1 to {} ranks, not {}", kMaxRanks,
                options.size);
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return fail(ErrorCode::kInvalidArgument, "rank {} is not in 0 to {}", options.rank,
                options.size - 1);
  }
  const auto deadline = steady_clock::now() + milliseconds(options.timeout_ms);
  const std::string name = segment_name(options.token);
  const size_t bytes =
      sizeof(GroupSegment) + static_cast<size_t>(options.size) * 2 * kSlotBytes + 4096;
  auto segment = options.rank == 0 ? ipc::SharedSegment::create(name, bytes)
                                   : ipc::SharedSegment::open(name, bytes, options.timeout_ms);
  if (!segment && segment.error().code == ErrorCode::kDeadline) {
    return fail(ErrorCode::kDeadline, "rank 0 of group {} has not come within {} ms", options.token,
                options.timeout_ms);
  }
  if (!segment) return forward_error(std::move(segment).error());
  std::unique_ptr<HostGroup> group(new HostGroup(options, std::move(*segment)));
  REFRAIN_RETURN_IF_ERROR(group->enter(deadline));
  REFRAIN_RETURN_IF_ERROR(group->await_everyone(deadline));
  group->count_cores();
  return group;
}

Status HostGroup::enter(steady_clock::time_point deadline) {
  GroupSegment& group = shared();
  if (rank() == 0) {
    group.size = static_cast<uint32_t>(size());
    group.magic.store(kMagic);
  }
  while (group.magic.load() != kMagic) {
    if (steady_clock::now() > deadline) {
      return fail(ErrorCode::kDeadline, "rank 0 of group {} has not come within {} ms",
                  options_.token, options_.timeout_ms);
    }
    std::this_thread::yield();
  }
  if (group.size != static_cast<uint32_t>(size())) {
    return fail(ErrorCode::kInvalidArgument, "rank 0 says group {} has {} ranks, rank {} says {}",
                options_.token, group.size, rank(), size());
  }
  RankState& me = group.ranks[rank()];
  me.pid = getpid();
  me.pid_namespace = pid_namespace();
  CPU_ZERO(&me.cores);
  if (sched_getaffinity(0, sizeof me.cores, &me.cores) != 0) CPU_SET(0, &me.cores);
  uint32_t expected = 0;
  if (!me.joined.compare_exchange_strong(expected, static_cast<uint32_t>(options_.threads) + 1)) {
    return fail(ErrorCode::kInvalidArgument, "rank {} has joined group {} already", rank(),
                options_.token);
  }
  entered_ = true;
  return {};
}

Status HostGroup::await_everyone(steady_clock::time_point deadline) {
  std::vector<int> missing;
  do {
    missing.clear();
    for (int peer = 0; peer < size(); ++peer) {
      if (shared().ranks[peer].joined.load() == 0) missing.push_back(peer);
    }
    if (missing.empty()) {
      segment_->unlink();
      return {};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  } while (steady_clock::now() < deadline);
  return fail(ErrorCode::kDeadline, "of group {}, rank {} has not come within {} ms",
              options_.token, fmt::join(missing, " and "), options_.timeout_ms);
}

void HostGroup::count_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  uint32_t threads = 0;
  for (int peer = 0; peer < size(); ++peer) {
    CPU_OR(&cores, &cores, &shared().ranks[peer].cores);
    threads += shared().ranks[peer].joined.load() - 1;
  }
  crowded_ = threads > static_cast<uint32_t>(CPU_COUNT(&cores));
}

HostGroup::~HostGroup() {
  if (!entered_) return;
  shared().ranks[rank()].left.store(1);
  for (int peer = 0; peer < size(); ++peer)
    ipc::futex_wake_all(shared().ranks[peer].sequence.value);
}

std::byte* HostGroup::slot(int rank, uint32_t sequence) const {
  auto* base = static_cast<std::byte*>(segment_->data());
  const size_t header = (sizeof(GroupSegment) + 4095) / 4096 * 4096;
  return base + header + (static_cast<size_t>(rank) * 2 + (sequence & 1)) * kSlotBytes;
}

void HostGroup::meet(const Post& post) {
  if (!broken_.empty()) throw DeviceError(broken_);
  const uint32_t next = sequence_ + 1;
  RankState& me = shared().ranks[rank()];
  me.posts[next & 1] = post;
  me.sequence.set(next);
  const auto deadline = steady_clock::now() + milliseconds(options_.timeout_ms);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) await(peer, post, deadline);
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) compare(peer, post);
  }
  sequence_ = next;
}

// Whether the process of a rank has ended: it does not exist, or only its parent has not asked yet.
bool HostGroup::gone(int peer) const {
  const RankState& state = shared().ranks[peer];
  if (state.pid_namespace != shared().ranks[rank()].pid_namespace) return false;
  if (kill(static_cast<pid_t>(state.pid), 0) != 0) return errno == ESRCH;
  std::ifstream file(fmt::format("/proc/{}/stat", state.pid));
  std::string stat;
  if (!std::getline(file, stat)) return false;
  const size_t name_end = stat.rfind(')');  // "pid (name) state …"
  return name_end != std::string::npos && name_end + 2 < stat.size() &&
         (stat[name_end + 2] == 'Z' || stat[name_end + 2] == 'X');
}

std::string HostGroup::find_missing() {
  // Who found it first told the others: by now it may be gone itself.
  if (const uint32_t by = shared().broken_by.load(); by != 0) return told_by(by);
  std::string missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const RankState& state = shared().ranks[peer];
    if (state.left.load() != 0) {
      if (missing.empty()) missing = fmt::format("rank {} left the group", peer);
    } else if (gone(peer)) {  // comes first: the others may have left because of it
      missing = fmt::format("rank {} (process {}) is gone", peer, state.pid);
      break;
    }
  }
  if (!missing.empty()) tell(missing);
  return missing;
}

std::string HostGroup::told_by(uint32_t by) const {
  return fmt::format("rank {} gave up: {}", by - 1, shared().reason);
}

void HostGroup::await(int peer, const Post& post, steady_clock::time_point deadline) {
  RankState& state = shared().ranks[peer];
  const uint32_t next = sequence_ + 1;
  const auto here = [&](uint32_t value) { return static_cast<int32_t>(value - next) >= 0; };
  const WaitPolicy& policy = crowded_ ? kCrowdedWait : kSpinWait;
  while (true) {
    const uint32_t seen = state.sequence.value.load(std::memory_order_acquire);
    if (here(seen)) return;
    if (state.sequence.wait_while(seen, policy, kSleepSlice)) continue;
    if (const uint32_t by = shared().broken_by.load(); by != 0) {
      broken_ = told_by(by);
      throw DeviceError(broken_);
    }
    const std::string what = fmt::format("{} (exchange {})", describe(post), next);
    if (state.left.load() != 0 && !here(state.sequence.value.load())) {
      give_up(fmt::format("rank {} left the group before {}", peer, what));
    }
    if (gone(peer)) {
      give_up(
          fmt::format("rank {} (process {}) is gone; it never came to {}", peer, state.pid, what));
    }
    if (steady_clock::now() >= deadline) {
      give_up(fmt::format("rank {} (process {}) did not come to {} within {} ms", peer, state.pid,
                          what, options_.timeout_ms));
    }
  }
}

void HostGroup::compare(int peer, const Post& mine) {
  const Post& theirs = shared().ranks[peer].posts[(sequence_ + 1) & 1];
  if (theirs == mine) return;
  give_up(fmt::format("ranks disagree at exchange {}: rank {} runs {}, rank {} runs {}",
                      sequence_ + 1, rank(), describe(mine), peer, describe(theirs)));
}

// Tells the other ranks, so that they do not wait for their deadline.
void HostGroup::tell(const std::string& reason) {
  GroupSegment& group = shared();
  if (group.breaking.exchange(1) != 0) return;
  reason.copy(group.reason, sizeof group.reason - 1);
  group.broken_by.store(static_cast<uint32_t>(rank()) + 1);
  for (int peer = 0; peer < size(); ++peer) ipc::futex_wake_all(group.ranks[peer].sequence.value);
}

void HostGroup::give_up(const std::string& reason) {
  broken_ = reason;
  tell(reason);
  throw DeviceError(reason);
}

}  // namespace refrain::worker
