#include "worker/dispatch/capture_sizes.h"

#include <algorithm>

#include "ipc/protocol/limits.h"

namespace refrain::worker {
namespace {

constexpr const char* kSizesField = "cudagraph_capture_sizes";
constexpr const char* kMaximumField = "max_cudagraph_capture_size";

int64_t decode_limit(const CaptureSizeLimits& limits) {
  return int64_t{limits.max_num_seqs} * limits.uniform_query_len;
}

void sort_unique(std::vector<int32_t>& sizes) {
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
}

}  // namespace

Result<std::vector<int32_t>> default_capture_sizes(const CaptureSizeLimits& limits,
                                                   std::optional<int32_t> maximum) {
  if (maximum && (*maximum < 1 || *maximum > ipc::kMaxCaptureSize)) {
    return fail_field(kMaximumField, "{} is {}; it must be between 1 and {}", kMaximumField,
                      *maximum, ipc::kMaxCaptureSize);
  }
  const int64_t wanted = maximum ? *maximum : std::min<int64_t>(2 * decode_limit(limits), 512);
  const auto max = static_cast<int32_t>(std::min<int64_t>(wanted, limits.max_num_batched_tokens));
  std::vector<int32_t> sizes = {1, 2, 4};
  for (int32_t size = 8; size <= std::min(max, 248); size += 8) sizes.push_back(size);
  for (int32_t size = 256; size <= max; size += 16) sizes.push_back(size);
  if (limits.max_num_batched_tokens <= max) sizes.push_back(limits.max_num_batched_tokens);
  if (decode_limit(limits) <= max) sizes.push_back(static_cast<int32_t>(decode_limit(limits)));
  std::erase_if(sizes, [max](int32_t size) { return size > max; });
  sort_unique(sizes);
  return sizes;
}

Result<std::vector<int32_t>> check_capture_sizes(std::vector<int32_t> sizes,
                                                 const CaptureSizeLimits& limits,
                                                 std::optional<int32_t> maximum,
                                                 std::vector<std::string>& warnings) {
  if (sizes.empty()) {
    return fail_field(kSizesField,
                      "{} is empty; give at least one size, or cudagraph_mode NONE for no graphs",
                      kSizesField);
  }
  sort_unique(sizes);
  if (sizes.size() > ipc::kMaxCaptureSizes) {
    return fail_field(kSizesField, "{} holds {} sizes; at most {} are possible", kSizesField,
                      sizes.size(), ipc::kMaxCaptureSizes);
  }
  if (sizes.front() < 1) {
    return fail_field(kSizesField, "{} holds {}; a size must be at least 1", kSizesField,
                      sizes.front());
  }
  std::string dropped;
  for (int32_t size : sizes) {
    if (size > limits.max_num_batched_tokens) {
      dropped += (dropped.empty() ? "" : ", ") + std::to_string(size);
    }
  }
  if (!dropped.empty()) {
    std::erase_if(sizes, [&](int32_t size) { return size > limits.max_num_batched_tokens; });
    if (sizes.empty()) {
      return fail_field(kSizesField,
                        "{} has no size left: {} is above max_num_batched_tokens ({}); give a "
                        "smaller size",
                        kSizesField, dropped, limits.max_num_batched_tokens);
    }
    warnings.push_back(fmt::format("{} {} dropped: above max_num_batched_tokens ({})", kSizesField,
                                   dropped, limits.max_num_batched_tokens));
  }
  if (maximum && *maximum != sizes.back()) {
    return fail_field(kMaximumField,
                      "{} is {}, but the largest of {} is {}; give {} or leave it out",
                      kMaximumField, *maximum, kSizesField, sizes.back(), sizes.back());
  }
  if (decode_limit(limits) <= sizes.back()) {
    sizes.push_back(static_cast<int32_t>(decode_limit(limits)));
    sort_unique(sizes);
  }
  return sizes;
}

std::vector<int32_t> decode_sizes(const std::vector<int32_t>& capture_sizes, int32_t max_num_seqs,
                                  int32_t uniform_query_len) {
  std::vector<int32_t> sizes;
  if (capture_sizes.empty()) return sizes;
  const int64_t q = uniform_query_len;
  const int64_t limit = std::min<int64_t>(q * max_num_seqs, capture_sizes.back());
  for (int64_t size : capture_sizes) {
    const int64_t rounded = (size + q - 1) / q * q;
    if (rounded <= limit) sizes.push_back(static_cast<int32_t>(rounded));
  }
  if (q * max_num_seqs <= limit) sizes.push_back(static_cast<int32_t>(q * max_num_seqs));
  sort_unique(sizes);
  return sizes;
}

}  // namespace refrain::worker
