#include "worker/comm/host/shared_memory_group.h"

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

std::string shared_memory_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat info {};
  if (boot.empty() || stat("/dev/shm", &info) != 0) return "";
  return fmt::format("{} {:x}:{:x}", boot, info.st_dev, info.st_ino);
}

SharedMemoryGroup::SharedMemoryGroup(const GroupOptions& options,
                                     std::unique_ptr<ipc::SharedSegment> segment)
    : HostGroup(options), segment_(std::move(segment)) {
  slots_ = static_cast<std::byte*>(segment_->data()) + (sizeof(GroupSegment) + 4095) / 4096 * 4096;
}

Result<std::unique_ptr<HostGroup>> SharedMemoryGroup::join(const GroupOptions& options,
                                                           int threads) {
  REFRAIN_RETURN_IF_ERROR(check_group(options));
  const auto deadline = steady_clock::now() + milliseconds(options.timeout_ms);
  const std::string name = segment_name(options.token);
  const size_t bytes = sizeof(GroupSegment) + bytes_of_slots(options.size) + 4096;
  auto segment = options.rank == 0 ? ipc::SharedSegment::create(name, bytes)
                                   : ipc::SharedSegment::open(name, bytes, options.timeout_ms);
  if (!segment && segment.error().code == ErrorCode::kDeadline) {
    return fail(ErrorCode::kDeadline, "rank 0 of group {} has not come within {} ms", options.token,
                options.timeout_ms);
  }
  if (!segment) return forward_error(std::move(segment).error());
  std::unique_ptr<SharedMemoryGroup> group(new SharedMemoryGroup(options, std::move(*segment)));
  REFRAIN_RETURN_IF_ERROR(group->enter(threads, deadline));
  REFRAIN_RETURN_IF_ERROR(group->await_everyone(deadline));
  group->count_cores();
  return std::unique_ptr<HostGroup>(std::move(group));
}

Status SharedMemoryGroup::enter(int threads, Deadline deadline) {
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
  if (!me.joined.compare_exchange_strong(expected, static_cast<uint32_t>(threads) + 1)) {
    return fail(ErrorCode::kInvalidArgument, "rank {} has joined group {} already", rank(),
                options_.token);
  }
  entered_ = true;
  return {};
}

Status SharedMemoryGroup::await_everyone(Deadline deadline) {
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
  } while (steady_clock::now() < deadline && !(options_.stop && options_.stop()));
  return fail(ErrorCode::kDeadline, "of group {}, rank {} has not come within {} ms",
              options_.token, fmt::join(missing, " and "), options_.timeout_ms);
}

void SharedMemoryGroup::count_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  uint32_t threads = 0;
  for (int peer = 0; peer < size(); ++peer) {
    CPU_OR(&cores, &cores, &shared().ranks[peer].cores);
    threads += shared().ranks[peer].joined.load() - 1;
  }
  crowded_ = threads > static_cast<uint32_t>(CPU_COUNT(&cores));
}

SharedMemoryGroup::~SharedMemoryGroup() {
  if (!entered_) return;
  shared().ranks[rank()].left.store(1);
  for (int peer = 0; peer < size(); ++peer)
    ipc::futex_wake_all(shared().ranks[peer].sequence.value);
}

void SharedMemoryGroup::exchange(const Post& post, Deadline deadline) {
  const uint32_t next = sequence_ + 1;
  RankState& me = shared().ranks[rank()];
  me.posts[next & 1] = post;
  me.sequence.set(next);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) await(peer, post, deadline);
  }
}

const Post& SharedMemoryGroup::post_of(int peer) const {
  return shared().ranks[peer].posts[(sequence_ + 1) & 1];
}

// Whether the process of a rank has ended: it does not exist, or only its parent has not asked yet.
bool SharedMemoryGroup::gone(int peer) const {
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

std::string SharedMemoryGroup::find_missing() {
  // Who found it first told the others: by now it may be gone itself.
  if (const uint32_t by = shared().broken_by.load(); by != 0) return told_by(by);
  std::string missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const RankState& state = shared().ranks[peer];
    const bool ended = gone(peer);  // asked first: it may leave and end between two looks
    if (state.left.load() != 0) {
      if (missing.empty()) missing = fmt::format("rank {} left the group", peer);
    } else if (ended) {  // comes first: the others may have left because of it
      missing = fmt::format("rank {} (process {}) is gone", peer, state.pid);
      tell(missing);
      break;
    }
  }
  return missing;
}

std::string SharedMemoryGroup::told_by(uint32_t by) const {
  return fmt::format("rank {} gave up: {}", by - 1, shared().reason);
}

void SharedMemoryGroup::await(int peer, const Post& post, Deadline deadline) {
  RankState& state = shared().ranks[peer];
  const uint32_t next = sequence_ + 1;
  const auto here = [&](uint32_t value) { return static_cast<int32_t>(value - next) >= 0; };
  const WaitPolicy& policy = crowded_ ? kCrowdedWait : kSpinWait;
  while (true) {
    const uint32_t seen = state.sequence.value.load(std::memory_order_acquire);
    if (here(seen)) return;
    if (state.sequence.wait_while(seen, policy, kSleepSlice)) continue;
    if (const uint32_t by = shared().broken_by.load(); by != 0) {
      stop(told_by(by));
    }
    const std::string what = fmt::format("{} (exchange {})", describe(post), next);
    const bool ended = gone(peer);  // asked first: it may come, leave and end between two looks
    const bool left = state.left.load() != 0;
    if (here(state.sequence.value.load())) return;
    if (left) give_up(fmt::format("rank {} left the group before {}", peer, what));
    if (ended) {
      give_up(
          fmt::format("rank {} (process {}) is gone; it never came to {}", peer, state.pid, what));
    }
    if (steady_clock::now() >= deadline) {
      give_up(fmt::format("rank {} (process {}) did not come to {} within {} ms", peer, state.pid,
                          what, options_.timeout_ms));
    }
  }
}

void SharedMemoryGroup::tell(const std::string& reason) {
  GroupSegment& group = shared();
  if (group.breaking.exchange(1) != 0) return;
  reason.copy(group.reason, sizeof group.reason - 1);
  group.broken_by.store(static_cast<uint32_t>(rank()) + 1);
  for (int peer = 0; peer < size(); ++peer) ipc::futex_wake_all(group.ranks[peer].sequence.value);
}

}  // namespace refrain::worker
