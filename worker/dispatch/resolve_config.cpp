// From options as configured to everything that decides keys (CG-2 … CG-10).

#include <algorithm>

#include "worker/dispatch/capture_sizes.h"
#include "worker/dispatch/dispatcher.h"

namespace refrain::worker {
namespace {

Status check_limits(const CudagraphOptions& options) {
  const auto at_least = [](const char* field, int64_t value, int64_t least) -> Status {
    if (value >= least) return {};
    return fail_field(field, "{} is {}; it must be at least {}", field, value, least);
  };
  REFRAIN_RETURN_IF_ERROR(at_least("max_num_seqs", options.max_num_seqs, 1));
  REFRAIN_RETURN_IF_ERROR(at_least("max_num_batched_tokens", options.max_num_batched_tokens, 1));
  REFRAIN_RETURN_IF_ERROR(at_least("num_speculative_tokens", options.num_speculative_tokens, 0));
  if (options.num_speculative_tokens > 1023) {
    return fail_field("num_speculative_tokens",
                      "num_speculative_tokens is {}; it must be at most 1023",
                      options.num_speculative_tokens);
  }
  if (options.max_capture_size) {
    REFRAIN_RETURN_IF_ERROR(at_least("max_cudagraph_capture_size", *options.max_capture_size, 1));
  }
  if (options.max_padding_ratio && !(*options.max_padding_ratio >= 1)) {
    return fail_field("max_padding_ratio", "max_padding_ratio is {}; it must be at least 1",
                      *options.max_padding_ratio);
  }
  for (const int32_t q : options.uniform_query_lens) {
    REFRAIN_RETURN_IF_ERROR(at_least("uniform_query_lens", q, 1));
    if (q <= 1024 && std::ranges::count(options.uniform_query_lens, q) == 1) continue;
    return fail_field("uniform_query_lens",
                      "uniform_query_lens holds {}; each may stand once and be at most 1024", q);
  }
  if (options.capture_sizes) {
    for (int32_t size : *options.capture_sizes) {
      REFRAIN_RETURN_IF_ERROR(at_least("cudagraph_capture_sizes", size, 1));
    }
  }
  return {};
}

// CG-2.
Result<CudagraphMode> configured_mode(const CudagraphOptions& options,
                                      std::vector<std::string>& warnings) {
  CudagraphMode mode = CudagraphMode::kFullAndPiecewise;
  if (options.mode) {
    REFRAIN_ASSIGN_OR_RETURN(mode, parse_cudagraph_mode(*options.mode));
  }
  if (options.enforce_eager) return CudagraphMode::kNone;
  if (options.encoder_decoder && mode != CudagraphMode::kNone &&
      mode != CudagraphMode::kFullDecodeOnly) {
    if (options.mode) {
      warnings.push_back(
          fmt::format("cudagraph_mode {} becomes FULL_DECODE_ONLY: the model is an encoder-decoder",
                      to_string(mode)));
    }
    mode = CudagraphMode::kFullDecodeOnly;
  }
  return mode;
}

// CG-10: asks the dispatcher itself about every legal decode batch.
void warn_uncovered(const CudagraphOptions& options, int64_t q, CudagraphConfig& config) {
  CudagraphDispatcher dispatcher(config);
  dispatcher.set_captured();
  const int64_t most = std::min<int64_t>(options.max_num_seqs, options.max_num_batched_tokens / q);
  int64_t first = 0, last = 0, count = 0;
  const int64_t within = std::min(most, config.capture_sizes.back() / q);
  for (int64_t reqs = 1; reqs <= within; ++reqs) {
    BatchShape batch;
    batch.num_tokens = static_cast<int32_t>(reqs * q);
    batch.num_reqs = static_cast<int32_t>(reqs);
    batch.uniform = true;
    batch.has_lora = config.lora;
    if (dispatcher.dispatch(batch).mode != RuntimeMode::kNone) continue;
    if (count++ == 0) first = reqs;
    last = reqs;
  }
  if (most > within) {  // more tokens than the largest key has
    if (count == 0) first = within + 1;
    count += most - within;
    last = most;
  }
  if (count == 0) return;
  config.warnings.push_back(
      fmt::format("no key covers {} of the {} decode batches allowed: the smallest has {} requests "
                  "({} tokens), "
                  "the largest {} ({} tokens); they run without a graph",
                  count, most, first, first * q, last, last * q));
}

// A draft head reads of all tokens what they have in every step; so do poolings but the last
// token's.
ipc::CaptureHiddenMode capture_hidden_mode(const ipc::WorkerConfig& config) {
  using enum ipc::CaptureHiddenMode;
  if (config.draft_head != ipc::DraftHead::kNone) return kFull;
  if (config.pooling.empty()) return kNull;
  return config.pooling == "LAST" ? kLast : kFull;
}

}  // namespace

CudagraphOptions cudagraph_options(const ipc::WorkerConfig& config) {
  CudagraphOptions options;
  options.mode = config.cudagraph_mode;
  options.enforce_eager = config.enforce_eager;
  if (config.has_capture_sizes) options.capture_sizes = config.cudagraph_capture_sizes;
  if (config.max_cudagraph_capture_size != 0) {
    options.max_capture_size = config.max_cudagraph_capture_size;
  }
  options.max_num_seqs = config.max_num_seqs;
  options.max_num_batched_tokens = config.max_num_batched_tokens;
  options.num_speculative_tokens = config.num_speculative_tokens;
  if (config.num_speculative_tokens > 0)
    options.uniform_query_lens = {1, 1 + config.num_speculative_tokens};  // CG-35
  options.disable_padding = config.disable_padding;
  if (config.max_padding_ratio != 0) options.max_padding_ratio = config.max_padding_ratio;
  options.lora = config.max_loras > 0;
  options.specialize_lora = config.cudagraph_specialize_lora;
  options.capture_hidden_mode = capture_hidden_mode(config);
  return options;
}

Result<CudagraphConfig> resolve_cudagraph_config(const CudagraphOptions& options,
                                                 const std::vector<AttentionGroupSupport>& groups,
                                                 bool splittable) {
  REFRAIN_RETURN_IF_ERROR(check_limits(options));
  CudagraphConfig config;
  config.uniform_query_lens = options.uniform_query_lens;
  if (config.uniform_query_lens.empty())
    config.uniform_query_lens = {1 + options.num_speculative_tokens};
  std::ranges::sort(config.uniform_query_lens);
  config.max_num_seqs = options.max_num_seqs;
  config.disable_padding = options.disable_padding;
  config.max_padding_ratio = options.max_padding_ratio.value_or(0);
  config.lora = options.lora;
  config.specialize_lora = options.specialize_lora;
  config.capture_hidden_mode = options.capture_hidden_mode;

  REFRAIN_ASSIGN_OR_RETURN(config.mode, configured_mode(options, config.warnings));
  ResolvedMode resolved =
      resolve_cudagraph_mode(config.mode, groups, config.uniform_query_len(), splittable);
  config.mode = resolved.mode;
  config.warnings.insert(config.warnings.end(), resolved.warnings.begin(), resolved.warnings.end());
  if (config.mode == CudagraphMode::kNone) return config;

  const CaptureSizeLimits limits{options.max_num_seqs, options.max_num_batched_tokens,
                                 config.uniform_query_len()};
  if (options.capture_sizes) {
    REFRAIN_ASSIGN_OR_RETURN(config.capture_sizes,
                             check_capture_sizes(*options.capture_sizes, limits,
                                                 options.max_capture_size, config.warnings));
  } else {
    REFRAIN_ASSIGN_OR_RETURN(config.capture_sizes,
                             default_capture_sizes(limits, options.max_capture_size));
  }
  for (const int32_t q : config.uniform_query_lens) warn_uncovered(options, q, config);
  return config;
}

}  // namespace refrain::worker
