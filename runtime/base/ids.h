#pragma once
// Identifiers. Distinct types where mixing two up would be silent; plain integers on the wire.

#include <cstdint>

namespace refrain {

using TokenId = int32_t;
using BlockId = int32_t;      // index into the paged KV cache; block 0 is reserved for padded rows
using SlotId = int32_t;       // a request's row in the worker's persistent per-request buffers
using AdapterId = int32_t;    // a LoRA adapter as it was loaded once; 0: none
using RequestId = uint64_t;   // unique for the life of a coordinator
using StepId = uint64_t;      // counts from 1 within an epoch
using TransferId = uint64_t;  // of KV blocks between groups; unique for the life of a coordinator
using Epoch = uint64_t;       // one life of a worker group; a frame of an older one is dropped

inline constexpr BlockId kReservedBlock = 0;
inline constexpr TokenId kTokenOnDevice = -1;  // "use the token this slot sampled last"

}  // namespace refrain
