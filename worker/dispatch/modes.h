#pragma once
// CUDA-graph modes as data (spec CG-1 … CG-6). Pure; any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/dispatch/attention_support.h"

namespace refrain::worker {

using ipc::RuntimeMode;  // kNone, kPiecewise, kFull

enum class CudagraphMode : uint8_t { kNone, kPiecewise, kFull, kFullDecodeOnly, kFullAndPiecewise };

const char* to_string(CudagraphMode mode);
Result<CudagraphMode> parse_cudagraph_mode(
    std::string_view name);  // upper case; error lists the five

RuntimeMode decode_mode(CudagraphMode mode);
RuntimeMode mixed_mode(CudagraphMode mode);
bool separates_decode_keys(CudagraphMode mode);
bool needs_splittable_program(CudagraphMode mode);

const char* to_string(AttentionCGSupport support);
Result<AttentionCGSupport> parse_attention_support(std::string_view name);

struct AttentionGroupSupport {
  std::string op;  // named in the warning when it causes a downgrade
  AttentionCGSupport support = AttentionCGSupport::kAlways;
};

struct ResolvedMode {
  CudagraphMode mode = CudagraphMode::kNone;
  std::vector<std::string> warnings;
};
// CG-3 … CG-6 in order; one warning a rule, naming the op.
ResolvedMode resolve_cudagraph_mode(CudagraphMode configured,
                                    const std::vector<AttentionGroupSupport>& groups,
                                    int uniform_query_len, bool splittable);

}  // namespace refrain::worker
