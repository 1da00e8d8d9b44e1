#include "tests/bench/kernels/bench_team.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "runtime/base/check.h"

namespace refrain::kernels {

BenchTeam::BenchTeam(int threads, BenchClock clock) : clock_(clock) {
  for (int i = 0; i < threads; ++i) {
    scratch_.push_back(std::make_unique<std::byte[]>(kTeamScratchBytes + 64));
  }
  for (int rank = 1; rank < threads; ++rank) {
    threads_.emplace_back([this, rank] { work(rank); });
  }
}

BenchTeam::~BenchTeam() {
  stop_ = true;
  for (auto& thread : threads_) thread.join();
}

void BenchTeam::work(int rank) {
  auto at = (reinterpret_cast<uintptr_t>(scratch_[rank].get()) + 63) / 64 * 64;
  const Team team{rank, size(), reinterpret_cast<std::byte*>(at), kTeamScratchBytes};
  uint64_t seen = 0;
  for (int idle = 0; !stop_.load(std::memory_order_relaxed);) {
    if (round_.load(std::memory_order_acquire) == seen) {
      ++idle < 20000 ? _mm_pause() : std::this_thread::yield();
      continue;
    }
    idle = 0;
    ++seen;
    function_(args_, team);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void BenchTeam::run(HostFunction function, const void* args, bool single) {
  auto at = (reinterpret_cast<uintptr_t>(scratch_[0].get()) + 63) / 64 * 64;
  auto* scratch = reinterpret_cast<std::byte*>(at);
  if (single) return function(args, {0, 1, scratch, kTeamScratchBytes});
  function_ = function;
  args_ = args;
  done_.store(0, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  function(args, {0, size(), scratch, kTeamScratchBytes});
  for (int idle = 0; done_.load(std::memory_order_acquire) != size() - 1;) {
    ++idle < 20000 ? _mm_pause() : std::this_thread::yield();
  }
}

void BenchTeam::launch(HostFunction function, const void* args, size_t bytes, const char* name,
                       bool single) {
  if (!recording_) return run(function, args, single);
  const auto* first = static_cast<const std::byte*>(args);
  nodes_.push_back({function, {first, first + bytes}, name, single});
}

void BenchTeam::start_recording() {
  nodes_.clear();
  recording_ = true;
}

void BenchTeam::replay() {
  recording_ = false;
  for (const Node& node : nodes_) run(node.function, node.args.data(), node.single);
}

std::vector<std::pair<const char*, double>> BenchTeam::replay_timed() {
  recording_ = false;
  std::vector<std::pair<const char*, double>> times;
  for (const Node& node : nodes_) {
    const double begin = now();
    run(node.function, node.args.data(), node.single);
    const double took = now() - begin;
    auto at = std::find_if(times.begin(), times.end(),
                           [&](const auto& entry) { return entry.first == node.name; });
    if (at == times.end()) at = times.insert(times.end(), {node.name, 0.0});
    at->second += took;
  }
  return times;
}

double BenchTeam::now() const {
  timespec time{};
  const clockid_t id = clock_ == BenchClock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
  REFRAIN_CHECK(clock_gettime(id, &time) == 0, "no clock {}", static_cast<int>(id));
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Timing measure(const BenchTeam& team, int runs, const std::function<void()>& body) {
  body();
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const double begin = team.now();
    body();
    times.push_back(team.now() - begin);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

Buffer::Buffer(size_t bytes) : memory_(nullptr, &std::free), bytes_(bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  const size_t rounded = (bytes + kHuge - 1) / kHuge * kHuge;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, rounded)));
  REFRAIN_CHECK(memory_ != nullptr, "no memory for {} bytes", rounded);
  madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // advice: a refusal only costs speed
  std::memset(memory_.get(), 0, rounded);
}

}  // namespace refrain::kernels
