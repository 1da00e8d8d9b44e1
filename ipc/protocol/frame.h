#pragma once
// The frame around a message of either protocol, that of the workers (codec.h) and that of the
// front (runtime/front): a fixed header {magic, version, type, flags, length, CRC32C of header and
// payload, epoch, sequence}, checked before anything is decoded. Pure; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace refrain::ipc {

inline constexpr size_t kHeaderBytes = 32;

struct FrameInfo {
  Epoch epoch = 0;
  uint64_t sequence = 0;  // counts from 1 per sender and epoch
};

// What a protocol's frames are held against.
struct FrameRules {
  uint32_t magic = 0;
  uint16_t version = 0;
  size_t max_frame_bytes = 0;
  std::span<const uint32_t> max_payload_bytes;  // by type of message
  const char* (*name)(size_t type) = nullptr;   // of a type, for errors
};

struct CheckedFrame {
  FrameInfo info;
  size_t type = 0;  // counted from 0
  std::span<const std::byte> payload;
};

// `out` holds room for the header, then the payload: fills the header in.
void finish_frame(const FrameRules& rules, size_t type, const FrameInfo& info,
                  std::vector<std::byte>& out);
Result<CheckedFrame> check_frame(const FrameRules& rules, std::span<const std::byte> frame);

}  // namespace refrain::ipc
