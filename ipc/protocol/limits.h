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
inline constexpr int32_t kMaxDrafts = 32;      // of a row
inline constexpr uint32_t kMaxStateGroups = 64;
inline constexpr uint32_t kMaxGroupRanks = 128;
inline constexpr uint32_t kMaxKvParts = 64;  // of a layer's block
inline constexpr uint32_t kMaxKvPieceWords = 16;
inline constexpr uint32_t kMaxUcxBytes = 4096;  // an address or a key of UCX
inline constexpr uint32_t kMaxRuns = 16;        // of a step
inline constexpr uint32_t kMaxReplicas = 256;   // that step together
inline constexpr uint32_t kMaxAdapters = 64;    // that are known at a time
inline constexpr uint32_t kMaxStepTokens = 1 << 20;
inline constexpr uint32_t kMaxBlockUpdates = 1 << 20;
inline constexpr uint32_t kMaxSlotTokens = 1 << 18;  // logit bias, allowed, end tokens of a request
inline constexpr uint32_t kMaxGrammarBytes = 65 << 10;  // its kind and its source
inline constexpr uint32_t kMaxTopTokens = 1 << 20;

// Log-probabilities of prompt tokens of a request, the likeliest tokens' with them; and of a step.
inline constexpr int64_t kMaxPromptScores = 1 << 17;

// Numbers of the vectors of a step of a model that pools.
inline constexpr uint32_t kMaxPooled = 1 << 22;

// Payload caps, in the order of the alternatives of Message.
inline constexpr std::array<uint32_t, std::variant_size_v<Message>> kMaxPayloadBytes = {
    8 << 10,                        // Hello
    256 << 10,                      // Welcome
    32 << 10,                       // Refuse
    32 << 10,                       // Progress
    64 << 10,                       // Loaded
    4 << 10,                        // InitCache
    4 << 20,                        // Ready
    kMaxFrameBytes - kHeaderBytes,  // Step
    kMaxFrameBytes - kHeaderBytes,  // StepResult
    4 << 10,                        // Heartbeat
    32 << 10,                       // Shutdown
    32 << 10,                       // Failed
    4 << 10,                        // Position
    kMaxGrammarBytes + (4 << 10),   // Grammar
    4 << 10,                        // GrammarReady
    4 << 10,                        // LoadAdapter
    32 << 10,                       // AdapterLoaded
    4 << 10,                        // UnloadAdapter
    4 << 10,                        // RankAddress
    256 << 10,                      // Peers
    256 << 10,                      // KvExport
    kMaxFrameBytes - kHeaderBytes,  // KvPeers
    kMaxFrameBytes - kHeaderBytes,  // PullBlocks
    4 << 10,                        // CancelPull
    32 << 10,                       // Pulled
    4 << 10,                        // TakeRole
};

// Least bytes that one element takes, which bounds a count by the bytes left.
inline constexpr size_t kMinManifestEntryBytes = 4 + 3 * 4 + 2 + 4 + 8 + 8 + 8 + 8;
inline constexpr size_t kMinRankAddressBytes = 3 * 4;
inline constexpr size_t kMinKvPartBytes = 4 + 3 * 8;
inline constexpr size_t kMinKvStatesBytes = 4 + 8 + 4;
inline constexpr size_t kMinKvPieceBytes = 8 + 8 + 4 + 4;
inline constexpr size_t kMinKvUcxMemoryBytes = 8 + 8 + 4;
inline constexpr size_t kMinKvExportBytes =
    4 + 8 + 8 + 4 + 4 + kMinRankAddressBytes + 3 * 4 + 1 + 4;
inline constexpr size_t kMinKvBlocksBytes = 2 * 4;
inline constexpr size_t kMinRunBytes = 1 + 1 + 6 * 4 + 2 * 4;
inline constexpr size_t kMinStateGroupBytes = 4 + 1 + 4 + 8 + 8 + 8;
inline constexpr size_t kMinBlockUpdatesBytes = 3 * 4;
inline constexpr size_t kMinSlotSetupBytes =
    4 + 6 * 4 + 5 * 4 + 8 + 4 + 4 + 4 + 1 + 4 + 4 + 4 + 4 + 4 + 4 + 4 + 4 + 4 + 4;

// What the parts of a Step take in its payload, so that its maker can keep it sendable.
inline constexpr size_t kMaxStepBytes = kMaxFrameBytes - kHeaderBytes;
inline constexpr size_t kAdapterPlacementBytes = 2 * 4;
inline constexpr size_t kStepSizeBytes = 2 * 4 + 4;
inline constexpr size_t kEmptyStepBytes = 8 + 1 + 1 + 5 * 4 + 2 + 8;  // without all that it lists
inline constexpr size_t kStepRowBytes = 3 * 4 + 1;
inline constexpr size_t kStepTokenBytes = 4;
inline constexpr size_t kBlockUpdateBytes = 3 * 4;
inline size_t bytes_of(const SlotSetup& setup) {
  return kMinSlotSetupBytes +
         4 * (setup.bias_tokens.size() + setup.bias_values.size() + setup.allowed_tokens.size() +
              setup.allowed_mask.size() + setup.end_tokens.size() + setup.reasoning_end.size() +
              setup.bad_words.size() + setup.output_tokens.size() + setup.history.size()) +
         setup.grammar.size();
}

}  // namespace refrain::ipc
