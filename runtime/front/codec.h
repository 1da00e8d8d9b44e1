#pragma once
// Frames of messages.h: the header of the workers' protocol with a magic number of its own, so that
// neither passes for the other. Pure functions; any thread.

#include <cstddef>
#include <span>
#include <vector>

#include "ipc/protocol/frame.h"
#include "runtime/base/result.h"
#include "runtime/front/messages.h"

namespace refrain::front {

// A prompt of a body of 32 MiB fits, as do the log-probabilities of one.
inline constexpr size_t kMaxFrameBytes = size_t{96} << 20;

struct DecodedFrame {
  ipc::FrameInfo info;
  Message message;
};

// `out` holds one whole frame afterwards. kTooLarge: it would not be taken.
Status encode_frame(const Message& message, const ipc::FrameInfo& info,
                    std::vector<std::byte>& out);
// Never throws, never allocates more than a small multiple of the frame's size.
Result<DecodedFrame> decode_frame(std::span<const std::byte> frame);

}  // namespace refrain::front
