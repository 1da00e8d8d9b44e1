#pragma once
// A transport between shards of one process with programmed faults.

#include <cstring>
#include <map>
#include <set>

#include "worker/transfer/transport.h"

namespace refrain::worker {

class FakeTransport final : public Transport {
 public:
  // Regions of the peer whose export says this pid.
  std::map<int64_t, std::vector<std::byte*>> memory;
  std::set<size_t> loses, fails;  // of the posts, counted from 0: never end by themselves; end so
  bool unreachable = false;
  bool slow = false;  // one read a poll
  size_t posts = 0;
  std::vector<ReadId> cancelled;

  const char* name() const override { return "fake"; }
  void describe(ipc::KvExport& own) const override { own.tcp.address = "fake"; }
  Status import(PeerId peer, const ipc::KvExport& other) override {
    if (unreachable) return fail(ErrorCode::kUnavailable, "it is told to fail");
    peers_[peer] = other.pid;
    return {};
  }
  void forget(PeerId peer) override {
    peers_.erase(peer);
    for (auto& [id, job] : jobs_)
      if (job.peer == peer) job.error = "gone";
  }
  void post(ReadId id, PeerId peer, std::vector<Read> reads) override {
    jobs_[id] = {peer, std::move(reads), loses.contains(posts),
                 fails.contains(posts) ? "failed" : ""};
    ++posts;
  }
  void cancel(ReadId id) override {
    cancelled.push_back(id);
    if (const auto found = jobs_.find(id); found != jobs_.end()) found->second.error = "cancelled";
  }
  std::vector<Progress> poll(std::chrono::milliseconds) override {
    std::vector<Progress> progress;
    for (auto at = jobs_.begin(); at != jobs_.end();) {
      auto& [id, job] = *at;
      Progress made{id, 0, false, job.error};
      if (job.error.empty() && !job.lost) {
        do {
          const Read& read = job.reads.front();
          std::memcpy(read.to, memory.at(peers_.at(job.peer)).at(read.region) + read.offset,
                      read.bytes);
          made.bytes += static_cast<int64_t>(read.bytes);
          job.reads.erase(job.reads.begin());
        } while (!slow && !job.reads.empty());
      }
      made.ended = job.reads.empty() || !job.error.empty();
      at = made.ended ? jobs_.erase(at) : std::next(at);
      if (made.ended || made.bytes > 0) progress.push_back(std::move(made));
    }
    return progress;
  }

 private:
  struct Job {
    PeerId peer = 0;
    std::vector<Read> reads;
    bool lost = false;
    std::string error;
  };
  std::map<PeerId, int64_t> peers_;
  std::map<ReadId, Job> jobs_;
};

}  // namespace refrain::worker
