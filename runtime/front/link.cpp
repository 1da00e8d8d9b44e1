#include "runtime/front/link.h"

#include <utility>

namespace refrain::front {
namespace {

// These begin sessions and belong to none.
bool is_greeting(const Message& message) {
  return std::holds_alternative<Hello>(message) || std::holds_alternative<Welcome>(message);
}

}  // namespace

void Link::begin(uint64_t session) {
  session_ = session;
  sent_ = 0;
  gate_ = ipc::FrameGate(session);
}

Status Link::send(const ipc::PeerId& to, const Message& message) {
  const bool greeting = is_greeting(message);
  const ipc::FrameInfo info = greeting ? ipc::FrameInfo{} : ipc::FrameInfo{session_, sent_ + 1};
  REFRAIN_RETURN_IF_ERROR(encode_frame(message, info, buffer_));
  REFRAIN_RETURN_IF_ERROR(endpoint_->send(to, buffer_));
  if (!greeting) ++sent_;
  return {};
}

Result<std::optional<Message>> Link::take(std::span<const std::byte> frame) {
  REFRAIN_ASSIGN_OR_RETURN(DecodedFrame decoded, decode_frame(frame));
  if (is_greeting(decoded.message)) return std::optional(std::move(decoded.message));
  if (session_ == 0 || decoded.info.epoch != session_) return std::optional<Message>();
  if (!gate_.accept(decoded.info))
    return fail(ErrorCode::kInternal, "frame {} of the session came out of turn",
                decoded.info.sequence);
  return std::optional(std::move(decoded.message));
}

}  // namespace refrain::front
