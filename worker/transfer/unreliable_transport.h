#pragma once
// A transport that loses one read of blocks in so many, for drills: it is never begun, and ends
// when it is cancelled or its peer is gone. Looks at flags are not lost. Transfer thread.

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "worker/transfer/transport.h"

namespace refrain::worker {

class LossyTransport final : public Transport {
 public:
  LossyTransport(std::unique_ptr<Transport> real, int one_in)
      : real_(std::move(real)), one_in_(one_in) {}

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
    for (auto at = lost_.begin(); at != lost_.end();) {
      const auto [id, of] = *at++;
      if (of == peer) end(id, kPeerGone);
    }
    flags_.erase(peer);
    real_->forget(peer);
  }
  void post(ReadId id, PeerId peer, std::vector<Read> reads) override {
    const auto flags = flags_.find(peer);
    const bool looks = flags != flags_.end() && reads.front().region == flags->second;
    if (looks || ++posts_ % one_in_ != 0) return real_->post(id, peer, std::move(reads));
    lost_.emplace(id, peer);
  }
  void cancel(ReadId id) override { lost_.contains(id) ? end(id, kCancelled) : real_->cancel(id); }
  std::vector<Progress> poll(std::chrono::milliseconds wait) override {
    if (!progress_.empty()) wait = std::chrono::milliseconds(0);
    std::vector<Progress> progress = real_->poll(wait);
    progress.insert(progress.end(), progress_.begin(), progress_.end());
    progress_.clear();
    return progress;
  }

 private:
  void end(ReadId id, const char* why) {
    lost_.erase(id);
    progress_.push_back({id, 0, true, why});
  }

  std::unique_ptr<Transport> real_;
  const int one_in_;
  int64_t posts_ = 0;
  std::map<PeerId, uint64_t> flags_;  // the region that has them
  std::map<ReadId, PeerId> lost_;
  std::vector<Progress> progress_;
};

}  // namespace refrain::worker
