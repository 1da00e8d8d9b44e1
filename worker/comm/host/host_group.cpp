#include "worker/comm/host/host_group.h"

#include <fmt/format.h>

namespace refrain::worker {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
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

Status check_group(const GroupOptions& options) {
  if (options.size < 1 || options.size > HostGroup::kMaxRanks) {
    return fail(ErrorCode::kInvalidArgument, "a host group has 1 to {} ranks, not {}",
                HostGroup::kMaxRanks, options.size);
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return fail(ErrorCode::kInvalidArgument, "rank {} is not in 0 to {}", options.rank,
                options.size - 1);
  }
  return {};
}

HostGroup::Deadline HostGroup::deadline() const {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms);
}

void HostGroup::meet(const Post& post) {
  if (!broken_.empty()) throw DeviceError(broken_);
  exchange(post, deadline());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) compare(peer, post);
  }
  ++sequence_;
}

void HostGroup::compare(int peer, const Post& mine) {
  const Post& theirs = post_of(peer);
  if (theirs == mine) return;
  give_up(fmt::format("ranks disagree at exchange {}: rank {} runs {}, rank {} runs {}",
                      sequence_ + 1, rank(), describe(mine), peer, describe(theirs)));
}

void HostGroup::give_up(const std::string& reason) {
  tell(reason);
  stop(reason);
}

void HostGroup::stop(const std::string& reason) {
  broken_ = reason;
  throw DeviceError(reason);
}

}  // namespace refrain::worker
