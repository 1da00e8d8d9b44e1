#pragma once
// What a step is, as predicates (spec "Forward modes", CG-34). Pure; any thread.

#include "ipc/protocol/messages.h"

namespace refrain::worker {

using ipc::ForwardMode;

bool is_prefill(ForwardMode mode);
bool is_extend(ForwardMode mode);
bool is_decode(ForwardMode mode);
bool is_cuda_graph(ForwardMode mode);  // a mode whose steps are meant to replay

// Where a step that no graph covers goes.
enum class EagerPath : uint8_t { kDecode, kSplitPrefill, kExtend, kIdle };
EagerPath eager_path(ForwardMode mode);

// EXTEND, DECODE, MIXED or IDLE from what the rows are: decode rows have one token over a context.
ForwardMode forward_mode_of(int32_t num_decodes, int32_t num_prefills);

}  // namespace refrain::worker
