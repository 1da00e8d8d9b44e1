#include "worker/device/host/thread_team.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/processors.h"

namespace refrain::worker {

namespace {

constexpr std::chrono::seconds kParkSlice{1};

void release_scratch(std::byte* data) { munmap(data, kernels::kTeamScratchBytes); }

std::byte* map_scratch() {
  void* data = mmap(nullptr, kernels::kTeamScratchBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw OutOfMemory(fmt::format("the system gave no {} bytes for a thread's scratch",
                                  kernels::kTeamScratchBytes),
                      kernels::kTeamScratchBytes);
  return static_cast<std::byte*>(data);
}

// Binds the calling thread to the index-th core it may use (wrapping around).
void pin_to_core(int index) {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0 || CPU_COUNT(&usable) == 0) return;
  int wanted = index % CPU_COUNT(&usable);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || wanted-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    REFRAIN_CHECK(sched_setaffinity(0, sizeof one, &one) == 0, "cannot pin to core {}", core);
    return;
  }
}

}  // namespace

ThreadTeam::ThreadTeam(int threads, bool pin, int first_core) {
  REFRAIN_CHECK(threads >= 1, "a team needs at least one thread, not {}", threads);
  crowded_ = threads > usable_processors();
  for (int rank = 0; rank < threads; ++rank) {
    scratch_.emplace_back(map_scratch(), release_scratch);
    members_.push_back({rank, threads, scratch_.back().get(), kernels::kTeamScratchBytes});
  }
  alone_ = {0, 1, members_[0].scratch, members_[0].scratch_bytes};
  for (int rank = 1; rank < threads; ++rank) {
    threads_.emplace_back([this, rank, pin, first_core] {
      if (pin) pin_to_core(first_core + rank);
      serve(members_[static_cast<size_t>(rank)]);
    });
  }
  if (pin) pin_to_core(first_core);
}

ThreadTeam::~ThreadTeam() {
  stopping_.store(true);
  dispatch_.set(dispatch_.value.load() + 1);
  for (auto& thread : threads_) thread.join();
}

void ThreadTeam::run(std::span<const LaunchNode> nodes) {
  if (members_.size() == 1) {
    for (const LaunchNode& node : nodes) {
      node.function(node.args, members_[0]);
      count_launch();
    }
    return;
  }
  if (nodes.size() == 1 && nodes[0].single) {
    nodes[0].function(nodes[0].args, alone_);
    count_launch();
    return;
  }
  if (nodes.empty()) return;
  nodes_ = nodes;
  dispatch_.set(dispatch_.value.load(std::memory_order_relaxed) + 1);
  walk(members_[0], nodes);
  if (failed_.load()) {
    failed_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadTeam::serve(const kernels::Team& member) {
  uint32_t seen = 0;
  while (true) {
    while (!dispatch_.wait_while(seen, wait_policy(), kParkSlice)) {
    }
    ++seen;
    if (stopping_.load()) return;
    walk(member, nodes_);
  }
}

void ThreadTeam::walk(const kernels::Team& member, std::span<const LaunchNode> nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    const LaunchNode& node = nodes[i];
    if (!node.single) {
      invoke(node, member);
    } else if (member.rank == 0) {
      invoke(node, alone_);
    }
    if (member.rank == 0) count_launch();
    const bool last = i + 1 == nodes.size();
    if (last) {
      meet(/*wait=*/member.rank == 0);  // the others go back to wait for the next dispatch
    } else if (!node.single || !nodes[i + 1].single) {
      meet(/*wait=*/true);
    }
  }
}

void ThreadTeam::invoke(const LaunchNode& node, const kernels::Team& member) {
  if (failed_.load(std::memory_order_relaxed)) return;
  try {
    node.function(node.args, member);
  } catch (...) {  // carried to the dispatching thread, which rethrows it
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true);
  }
}

void ThreadTeam::meet(bool wait) {
  const uint32_t phase = phase_.value.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.set(phase + 1);
  } else if (wait) {
    while (!phase_.wait_while(phase, wait_policy(), kParkSlice)) {
    }
  }
}

}  // namespace refrain::worker
