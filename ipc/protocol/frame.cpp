#include "ipc/protocol/frame.h"

#include <cstring>

#include "ipc/protocol/crc32c.h"
#include "runtime/base/check.h"

namespace refrain::ipc {
namespace {

struct Header {
  uint32_t magic;
  uint16_t version;
  uint8_t type;   // of message, counted from 1
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

}  // namespace

void finish_frame(const FrameRules& rules, size_t type, const FrameInfo& info,
                  std::vector<std::byte>& out) {
  const size_t payload = out.size() - kHeaderBytes;
  REFRAIN_CHECK(payload <= rules.max_payload_bytes[type], "{} of {} bytes; at most {} fit a frame",
                rules.name(type), payload, rules.max_payload_bytes[type]);
  Header header{rules.magic,
                rules.version,
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

Result<CheckedFrame> check_frame(const FrameRules& rules, std::span<const std::byte> frame) {
  if (frame.size() < kHeaderBytes)
    return fail(ErrorCode::kInvalidArgument, "frame of {} bytes is shorter than its header ({})",
                frame.size(), kHeaderBytes);
  if (frame.size() > rules.max_frame_bytes)
    return fail(ErrorCode::kInvalidArgument, "frame of {} bytes; at most {} are allowed",
                frame.size(), rules.max_frame_bytes);
  Header header;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != rules.magic)
    return fail(ErrorCode::kInvalidArgument, "frame does not begin with Refrain's magic number");
  if (header.version != rules.version)
    return fail(ErrorCode::kInvalidArgument, "frame of protocol version {}; this build speaks {}",
                header.version, rules.version);
  if (header.type < 1 || header.type > rules.max_payload_bytes.size())
    return fail(ErrorCode::kInvalidArgument, "frame of unknown type {}", header.type);
  if (header.flags != 0)
    return fail(ErrorCode::kInvalidArgument, "frame with unknown flags {:#x}", header.flags);
  if (header.length != frame.size() - kHeaderBytes)
    return fail(ErrorCode::kInvalidArgument, "frame claims {} bytes of payload and carries {}",
                header.length, frame.size() - kHeaderBytes);
  const size_t type = header.type - 1u;
  if (header.length > rules.max_payload_bytes[type])
    return fail(ErrorCode::kInvalidArgument, "{} of {} bytes; at most {} are allowed",
                rules.name(type), header.length, rules.max_payload_bytes[type]);
  if (header.crc != frame_crc(frame))
    return fail(ErrorCode::kInvalidArgument, "frame's checksum does not match its contents");
  return CheckedFrame{{header.epoch, header.sequence}, type, frame.subspan(kHeaderBytes)};
}

}  // namespace refrain::ipc
