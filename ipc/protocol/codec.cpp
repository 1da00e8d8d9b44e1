#include "ipc/protocol/codec.h"

#include <array>
#include <new>
#include <stdexcept>
#include <utility>

#include "ipc/protocol/limits.h"
#include "ipc/protocol/shape_check.h"
#include "ipc/protocol/wire_format.h"

namespace refrain::ipc {
namespace {

using DecodePayload = void (*)(wire::Reader&, Message&);

template <size_t I>
void decode_payload(wire::Reader& in, Message& message) {
  in(message.emplace<I>());
}

template <size_t... I>
constexpr std::array<DecodePayload, sizeof...(I)> make_decoders(std::index_sequence<I...>) {
  return {decode_payload<I>...};
}
constexpr auto kDecoders = make_decoders(std::make_index_sequence<std::variant_size_v<Message>>{});

constexpr FrameRules kRules{kFrameMagic, kProtocolVersion, kMaxFrameBytes, kMaxPayloadBytes,
                            message_name};

}  // namespace

void encode_frame(const Message& message, const FrameInfo& info, std::vector<std::byte>& out) {
  out.clear();
  out.resize(kHeaderBytes);
  wire::Writer writer(out);
  std::visit([&](const auto& alternative) { writer(alternative); }, message);
  finish_frame(kRules, message.index(), info, out);
}

Result<DecodedFrame> decode_frame(std::span<const std::byte> frame) try {
  REFRAIN_ASSIGN_OR_RETURN(const CheckedFrame checked, check_frame(kRules, frame));
  Result<DecodedFrame> decoded{DecodedFrame{checked.info, {}}};
  wire::Reader reader(checked.payload);
  kDecoders[checked.type](reader, decoded->message);
  if (reader.ok() && reader.left() > 0)
    reader.reject("{} bytes follow the last field", reader.left());
  if (!reader.ok())
    return fail(ErrorCode::kInvalidArgument, "{}: {}", message_name(checked.type), reader.error());
  if (const char* mismatch = shape_mismatch(decoded->message))
    return fail(ErrorCode::kInvalidArgument, "{}: {}", message_name(checked.type), mismatch);
  return decoded;
} catch (const std::bad_alloc&) {
  return fail(ErrorCode::kInternal, "no memory to decode a frame of {} bytes", frame.size());
}

bool FrameGate::accept(const FrameInfo& info) {
  if (info.epoch != epoch_) {
    ++wrong_epoch_;
  } else if (info.sequence < next_) {
    ++duplicates_;
  } else if (info.sequence > next_) {
    ++gaps_;
  } else {
    ++next_;
    return true;
  }
  return false;
}

}  // namespace refrain::ipc
