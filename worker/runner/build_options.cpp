#include "worker/runner/build_options.h"

#include <optional>
#include <string>

namespace refrain::worker {
namespace {

Result<DType> parse_dtype(const char* field, const std::string& name) {
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float32") return DType::kFloat32;
  return fail_field(field, "{} \"{}\" is not supported; it must be bfloat16 or float32", field,
                    name);
}

Result<std::optional<kernels::Pooling>> parse_pooling(const std::string& name) {
  if (name.empty()) return std::optional<kernels::Pooling>();
  if (name == "LAST") return kernels::Pooling::kLast;
  if (name == "MEAN") return kernels::Pooling::kMean;
  if (name == "CLS") return kernels::Pooling::kFirst;
  return fail_field("pooling", "pooling \"{}\" is not there; it is LAST, MEAN or CLS", name);
}

Status set_logprobs(const std::string& mode, BuildLimits& limits) {
  limits.tells_logits = mode == "raw_logits" || mode == "processed_logits";
  limits.tells_processed = mode == "processed_logprobs" || mode == "processed_logits";
  if (limits.tells_logits || limits.tells_processed || mode == "raw_logprobs") return {};
  return fail_field("logprobs_mode",
                    "logprobs_mode \"{}\" is not there; it is raw_logprobs, raw_logits, "
                    "processed_logprobs or processed_logits",
                    mode);
}

}  // namespace

Result<BuildOptions> build_options(const ModelConfig& model, const ipc::WorkerConfig& config) {
  BuildOptions options = {};
  REFRAIN_ASSIGN_OR_RETURN(options.activation_dtype, parse_dtype("dtype", config.dtype));
  options.kv_dtype = options.activation_dtype;
  if (config.kv_cache_dtype != "auto") {
    REFRAIN_ASSIGN_OR_RETURN(options.kv_dtype,
                             parse_dtype("kv_cache_dtype", config.kv_cache_dtype));
  }
  REFRAIN_ASSIGN_OR_RETURN(options.pooling, parse_pooling(config.pooling));
  REFRAIN_RETURN_IF_ERROR(set_logprobs(config.logprobs_mode, options.limits));
  // float32 activations keep the checkpoint's own bfloat16 weights: widening them adds nothing.
  const bool narrow =
      options.activation_dtype == DType::kBFloat16 || model.torch_dtype == "bfloat16";
  options.weight_dtype = narrow ? DType::kBFloat16 : DType::kFloat32;
  // A step may reach beyond a request's end by its drafts, and so may the step before it.
  const int32_t drafts = config.num_speculative_tokens;
  const int32_t beyond = drafts > 0 ? 3 * (1 + drafts) : 0;
  options.max_positions = config.max_model_len + beyond;
  options.limits.num_drafts = drafts;
  options.limits.lookup_least = config.prompt_lookup_min;
  options.limits.lookup_most = config.prompt_lookup_max;
  options.limits.synthetic_acceptance = config.synthetic_acceptance;
  options.limits.history_cols = config.max_model_len + 2 * (1 + drafts);
  // Long prompts bring blocks for all their tokens at once, decodes one now and then.
  options.limits.step = {
      config.max_num_batched_tokens, config.max_num_seqs,
      4 * config.max_num_seqs + config.max_num_batched_tokens / config.block_size + 64,
      drafts > 0 ? config.max_num_batched_tokens : 0};
  options.limits.max_blocks =
      (config.max_model_len + beyond + config.block_size - 1) / config.block_size;
  return options;
}

Status check_limits(const ipc::WorkerConfig& config) {
  const auto at_least_one = [](const char* field, int64_t value) -> Status {
    if (value >= 1) return {};
    return fail_field(field, "{} is {}; it must be at least 1", field, value);
  };
  REFRAIN_RETURN_IF_ERROR(at_least_one("max_model_len", config.max_model_len));
  REFRAIN_RETURN_IF_ERROR(at_least_one("block_size", config.block_size));
  REFRAIN_RETURN_IF_ERROR(at_least_one("max_num_seqs", config.max_num_seqs));
  if (config.max_loras > 0)
    REFRAIN_RETURN_IF_ERROR(at_least_one("max_lora_rank", config.max_lora_rank));
  return at_least_one("max_num_batched_tokens", config.max_num_batched_tokens);
}

}  // namespace refrain::worker
