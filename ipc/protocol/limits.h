#pragma once
// What a decoder accepts at most: a cap for each container and for each message type's
// payload. A sender that would exceed one has a defect and fails its own check.

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/messages.h"

namespace refrain::ipc {

inline constexpr uint32_t kMaxNameBytes = 512;        // identifiers, modes, digests
inline constexpr uint32_t kMaxTextBytes = 16 * 1024;  // text for people; longer text is cut
inline constexpr uint32_t kMaxShortList = 4096;       // capture sizes, manifest, warnings, tags
inline constexpr uint32_t kMaxCaptureSizes =
    kMaxShortList / 2;                               // a size has two keys in a manifest
inline constexpr int32_t kMaxCaptureSize = 1 << 14;  // a default list up to it fits as well
inline constexpr uint32_t kMaxSplittingOps = 64;
inline constexpr uint32_t kMaxRows = 1 << 16;  // requests in a step
inline constexpr uint32_t kMaxStepTokens = 1 << 20;
inline constexpr uint32_t kMaxBlockUpdates = 1 << 20;
inline constexpr uint32_t kMaxSlotTokens = 1 << 18;  // logit bias, allowed, end tokens of a request
inline constexpr uint32_t kMaxTopTokens = 1 << 20;

inline constexpr size_t kHeaderBytes = 32;

// Payload caps, in the order of the alternatives of Message.
inline constexpr std::array<uint32_t, std::variant_size_v<Message>> kMaxPayloadBytes = {
    8 << 10,                        // Hello
    256 << 10,                      // Welcome
    32 << 10,                       // Refuse
    32 << 10,                       // Progress
    4 << 10,                        // Loaded
    4 << 10,                        // InitCache
    4 << 20,                        // Ready
    kMaxFrameBytes - kHeaderBytes,  // Step
    kMaxFrameBytes - kHeaderBytes,  // StepResult
    4 << 10,                        // Heartbeat
    32 << 10,                       // Shutdown
    32 << 10,                       // Failed
    4 << 10,                        // Position
};

// Least bytes that one element takes, which bounds a count by the bytes left.
inline constexpr size_t kMinManifestEntryBytes = 4 + 3 * 4 + 1 + 4 + 8 + 8 + 8 + 8;
inline constexpr size_t kMinSlotSetupBytes = 4 + 6 * 4 + 3 * 4 + 8 + 4 + 4 + 1 + 4 + 4 + 4 + 4;

// What the parts of a Step take in its payload, so that its maker can keep it sendable.
inline constexpr size_t kMaxStepBytes = kMaxFrameBytes - kHeaderBytes;
inline constexpr size_t kEmptyStepBytes = 8 + 1 + 1 + 1 + 9 * 4 + 1;
inline constexpr size_t kStepRowBytes = 3 * 4 + 1;
inline constexpr size_t kStepTokenBytes = 4;
inline constexpr size_t kBlockUpdateBytes = 3 * 4;
inline size_t bytes_of(const SlotSetup& setup) {
  return kMinSlotSetupBytes +
         4 * (setup.bias_tokens.size() + setup.bias_values.size() + setup.allowed_tokens.size() +
              setup.allowed_mask.size() + setup.end_tokens.size());
}

}  // namespace refrain::ipc
