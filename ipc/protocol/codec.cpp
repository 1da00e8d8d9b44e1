#include "ipc/protocol/codec.h"

#include <array>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "ipc/protocol/crc32c.h"
#include "ipc/protocol/limits.h"
#include "ipc/protocol/shape_check.h"
#include "ipc/protocol/wire_format.h"

namespace refrain::ipc {
namespace {

struct Header {
  uint32_t magic;
  uint16_t version;
  uint8_t type;   // alternative of Message, counted from 1
  uint8_t flags;  // none defined: 0
  uint32_t length;
  uint32_t crc;  // of the header without this field, then the payload
  uint64_t epoch;
  uint64_t sequence;
};
static_assert(sizeof(Header) == kHeaderBytes && offsetof(Header, crc) == 12 &&
              offsetof(Header, epoch) == 16);

uint32_t frame_crc(std::span<const std::byte> frame) {
  return crc32c(frame.subspan(offsetof(Header, epoch)), crc32c(frame.first(offsetof(Header, crc))));
}

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

Result<Header> check_header(std::span<const std::byte> frame) {
  if (frame.size() < kHeaderBytes)
    return fail(ErrorCode::kInvalidArgument, "frame of {} bytes is shorter than its header ({})",
                frame.size(), kHeaderBytes);
  if (frame.size() > kMaxFrameBytes)
    return fail(ErrorCode::kInvalidArgument, "frame of {} bytes; at most {} are allowed",
                frame.size(), kMaxFrameBytes);
  Header header;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kFrameMagic)
    return fail(ErrorCode::kInvalidArgument, "frame does not begin with Refrain's magic number");
  if (header.version != kProtocolVersion)
    return fail(ErrorCode::kInvalidArgument, "frame of protocol version {}; this build speaks {}",
                header.version, kProtocolVersion);
  if (header.type < 1 || header.type > kDecoders.size())
    return fail(ErrorCode::kInvalidArgument, "frame of unknown type {}", header.type);
  if (header.flags != 0)
    return fail(ErrorCode::kInvalidArgument, "frame with unknown flags {:#x}", header.flags);
  if (header.length != frame.size() - kHeaderBytes)
    return fail(ErrorCode::kInvalidArgument, "frame claims {} bytes of payload and carries {}",
                header.length, frame.size() - kHeaderBytes);
  if (header.length > kMaxPayloadBytes[header.type - 1u])
    return fail(ErrorCode::kInvalidArgument, "{} of {} bytes; at most {} are allowed",
                message_name(header.type - 1u), header.length, kMaxPayloadBytes[header.type - 1u]);
  if (header.crc != frame_crc(frame))
    return fail(ErrorCode::kInvalidArgument, "frame's checksum does not match its contents");
  return header;
}

}  // namespace

void encode_frame(const Message& message, const FrameInfo& info, std::vector<std::byte>& out) {
  out.clear();
  out.resize(kHeaderBytes);
  wire::Writer writer(out);
  std::visit([&](const auto& alternative) { writer(alternative); }, message);
  const size_t type = message.index();
  const size_t payload = out.size() - kHeaderBytes;
  REFRAIN_CHECK(payload <= kMaxPayloadBytes[type], "{} of {} bytes; at most {} fit a frame",
                message_name(type), payload, kMaxPayloadBytes[type]);
  Header header{kFrameMagic,
                kProtocolVersion,
                static_cast<uint8_t>(type + 1),
                0,
                static_cast<uint32_t>(payload),
                0,
                info.epoch,
                info.sequence};
  std::memcpy(out.data(), &header, sizeof header);
  header.crc = frame_crc(out);
  std::memcpy(out.data(), &header, sizeof header);
}

Result<DecodedFrame> decode_frame(std::span<const std::byte> frame) try {
  const auto header = check_header(frame);
  if (!header) return forward_error(header.error());
  Result<DecodedFrame> decoded{DecodedFrame{{header->epoch, header->sequence}, {}}};
  wire::Reader reader(frame.subspan(kHeaderBytes));
  kDecoders[header->type - 1u](reader, decoded->message);
  if (reader.ok() && reader.left() > 0)
    reader.reject("{} bytes follow the last field", reader.left());
  if (!reader.ok())
    return fail(ErrorCode::kInvalidArgument, "{}: {}", message_name(header->type - 1u),
                reader.error());
  if (const char* mismatch = shape_mismatch(decoded->message))
    return fail(ErrorCode::kInvalidArgument, "{}: {}", message_name(header->type - 1u), mismatch);
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
