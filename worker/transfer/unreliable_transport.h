#pragma once
// A transport for drills. Of the reads of blocks one in so many is lost: it is never begun, and
// ends when it is cancelled or its peer is gone. Or it is held: it is done late, whether or not it
// was cancelled meanwhile, as where the reader's machine stood still. Looks at flags are neither.
// Transfer thread.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

struct PlannedFaults {
  int one_in = 0;                     // reads, of which one is lost or held; 0: none
  int held = 0;                       // at most so many at once
  std::chrono::milliseconds hold{0};  // 0: they are lost
};

class UnreliableTransport final : public Transport {
 public:
  UnreliableTransport(std::unique_ptr<Transport> real, PlannedFaults faults,
                      const Clock& clock = steady_clock())
      : real_(std::move(real)), faults_(faults), clock_(clock) {}

  const char* name() const override { return real_->name(); }
  void describe(ipc::KvExport& own) const override { real_->describe(own); }
  Status import(PeerId peer, const ipc::KvExport& other) override {
    uint64_t regions = 0;
    for (const ipc::KvStates& states : other.states)
      regions += static_cast<uint64_t>(states.num_layers);
    flags_[peer] = regions;
    return real_->import(peer, other);
  }
  void forget(PeerId peer) override {
    for (auto at = late_.begin(); at != late_.end();) {
      const auto& [id, read] = *at++;
      if (read.peer == peer) end(id, kPeerGone);
    }
    flags_.erase(peer);
    real_->forget(peer);
  }
  void post(ReadId id, PeerId peer, std::vector<Read> reads) override {
    const auto flags = flags_.find(peer);
    const bool looks = flags != flags_.end() && reads.front().region == flags->second;
    if (looks || ++posts_ % faults_.one_in != 0) return real_->post(id, peer, std::move(reads));
    if (holds() && std::ssize(late_) == faults_.held)
      return real_->post(id, peer, std::move(reads));
    late_.emplace(id, Late{peer, std::move(reads), clock_.now() + faults_.hold});
  }
  void cancel(ReadId id) override {
    if (!late_.contains(id)) return real_->cancel(id);
    if (!holds()) end(id, kCancelled);
  }
  std::vector<Progress> poll(std::chrono::milliseconds wait) override {
    const TimePoint now = clock_.now();
    for (auto at = late_.begin(); holds() && at != late_.end();) {
      if (at->second.due > now) {
        wait = std::min(wait, kLookEvery);
        ++at;
        continue;
      }
      real_->post(at->first, at->second.peer, std::move(at->second.reads));
      at = late_.erase(at);
    }
    if (!progress_.empty()) wait = std::chrono::milliseconds(0);
    std::vector<Progress> progress = real_->poll(wait);
    progress.insert(progress.end(), progress_.begin(), progress_.end());
    progress_.clear();
    return progress;
  }

 private:
  static constexpr std::chrono::milliseconds kLookEvery{20};

  struct Late {
    PeerId peer = 0;
    std::vector<Read> reads;
    TimePoint due;
  };
  bool holds() const { return faults_.hold.count() > 0; }
  void end(ReadId id, const char* why) {
    late_.erase(id);
    progress_.push_back({id, 0, true, why});
  }

  std::unique_ptr<Transport> real_;
  const PlannedFaults faults_;
  const Clock& clock_;
  int64_t posts_ = 0;
  std::map<PeerId, uint64_t> flags_;  // the region that has them
  std::map<ReadId, Late> late_;
  std::vector<Progress> progress_;
};

}  // namespace refrain::worker
