#pragma once
// Which padded sizes have graphs (spec CG-7 … CG-9). Pure; any thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::worker {

struct CaptureSizeLimits {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t uniform_query_len = 1;  // q
};

// CG-7: 1 2 4, 8 … 248 by 8, 256 … max by 16, the two limits where they fit. Ascending.
Result<std::vector<int32_t>> default_capture_sizes(const CaptureSizeLimits& limits,
                                                   std::optional<int32_t> maximum);

// CG-8: the user's own list, checked, sorted, cut at max_num_batched_tokens. Errors name the field.
Result<std::vector<int32_t>> check_capture_sizes(std::vector<int32_t> sizes,
                                                 const CaptureSizeLimits& limits,
                                                 std::optional<int32_t> maximum,
                                                 std::vector<std::string>& warnings);

// CG-9: token counts of the decode keys, ascending, each a multiple of q.
std::vector<int32_t> decode_sizes(const std::vector<int32_t>& capture_sizes, int32_t max_num_seqs,
                                  int32_t uniform_query_len);

}  // namespace refrain::worker
