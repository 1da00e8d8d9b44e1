// How the ranks of a group find each other, and over what they meet.

#include <fmt/format.h>

#include <algorithm>

#include "worker/comm/host/host_group.h"
#include "worker/comm/host/shared_memory_group.h"
#include "worker/comm/host/tcp_group.h"

namespace refrain::worker {

Result<std::unique_ptr<HostGroup>> join_group(const GroupOptions& options, int threads) {
  REFRAIN_RETURN_IF_ERROR(check_group(options));
  if (!options.meet) return SharedMemoryGroup::join(options, threads);
  ipc::RankAddress mine;
  mine.memory = shared_memory_name();
  std::unique_ptr<ipc::RankSockets> sockets;
  if (!options.listen_on.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(
        sockets, ipc::RankSockets::listen(options.listen_on, TcpGroup::max_frame_bytes()));
    mine.address = sockets->address();
    mine.key = sockets->key();
  }
  REFRAIN_ASSIGN_OR_RETURN(const std::vector<ipc::RankAddress> ranks, options.meet(mine));
  if (std::ssize(ranks) != options.size) {
    return fail(ErrorCode::kInvalidArgument, "the coordinator told of {} ranks, the group has {}",
                ranks.size(), options.size);
  }
  if (!mine.memory.empty() &&
      std::ranges::all_of(ranks, [&](const auto& rank) { return rank.memory == mine.memory; })) {
    sockets.reset();
    return SharedMemoryGroup::join(options, threads);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].address.empty()) continue;
    return fail_field("local-addr",
                      "the ranks of this group share no memory and rank {} has no address; give "
                      "each worker --local-addr HOST",
                      rank);
  }
  return TcpGroup::join(options, std::move(sockets), ranks, threads);
}

}  // namespace refrain::worker
