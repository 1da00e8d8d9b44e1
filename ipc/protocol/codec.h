#pragma once
// Frames of coordinator and workers: a header (frame.h), then the cereal payload read through a
// bounded archive. Pure functions; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/protocol/frame.h"
#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"

namespace refrain::ipc {

inline constexpr uint32_t kFrameMagic = 0x4e525152;  // "RQRN"
inline constexpr size_t kMaxFrameBytes = size_t{16} << 20;

struct DecodedFrame {
  FrameInfo info;
  Message message;
};

// Appends nothing: `out` is cleared and holds one whole frame afterwards (its capacity is reused).
void encode_frame(const Message& message, const FrameInfo& info, std::vector<std::byte>& out);

// Never throws, never allocates more than a small multiple of the frame's size.
Result<DecodedFrame> decode_frame(std::span<const std::byte> frame);

// Accepts frames of one peer in order: rejects wrong epochs, duplicates and gaps, and counts them.
// After a gap nothing is accepted any more: what was lost cannot be made up, the group is fenced
//
class FrameGate {
 public:
  explicit FrameGate(Epoch epoch) : epoch_(epoch) {}
  // True when the frame is the next one of this epoch.
  bool accept(const FrameInfo& info);
  uint64_t rejected() const { return wrong_epoch_ + duplicates_ + gaps_; }
  uint64_t wrong_epoch() const { return wrong_epoch_; }
  uint64_t duplicates() const { return duplicates_; }  // sequence seen before
  uint64_t gaps() const { return gaps_; }              // sequence ahead of the next one

 private:
  Epoch epoch_;
  uint64_t next_ = 1;
  uint64_t wrong_epoch_ = 0;
  uint64_t duplicates_ = 0;
  uint64_t gaps_ = 0;
};

}  // namespace refrain::ipc
