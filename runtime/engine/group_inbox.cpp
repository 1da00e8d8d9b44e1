#include "runtime/engine/group_inbox.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/log.h"

namespace refrain {
namespace {

tl::unexpected<GroupFault> frames_fault(int32_t rank, std::string reason) {
  return tl::make_unexpected(GroupFault{"frames", {rank}, std::move(reason)});
}

}  // namespace

GroupInbox::Taken GroupInbox::take(const ipc::PeerId& from, std::span<const std::byte> bytes,
                                   TimePoint now) {
  Result<ipc::DecodedFrame> frame = ipc::decode_frame(bytes);
  if (!frame) return unreadable(from, frame.error().message, now);
  if (std::holds_alternative<ipc::Hello>(frame->message))
    return Letter{-1, std::move(frame->message)};
  const int32_t rank = members_.rank_of(from);
  // Of an epoch that is over, or of a peer that never said hello.
  if (rank < 0) return std::nullopt;
  Member& member = *members_.find(rank);
  if (!member.gate.accept(frame->info)) {
    if (member.gate.gaps() == 0) return std::nullopt;
    return frames_fault(rank, fmt::format("frames of {} were lost", members_.name_of(rank)));
  }
  member.spoke = true;
  return Letter{rank, std::move(frame->message)};
}

GroupInbox::Taken GroupInbox::unreadable(const ipc::PeerId& from, const std::string& why,
                                         TimePoint now) {
  const int32_t rank = members_.rank_of(from);
  log::warn("bad frame from {}: {}", from, why);
  if (rank < 0 || !members_.bad_frame(rank, now)) return std::nullopt;
  return frames_fault(rank,
                      fmt::format("{} sent {} bad frames, the last: {}", members_.name_of(rank),
                                  members_.find(rank)->bad_frames.size(), why));
}

}  // namespace refrain
