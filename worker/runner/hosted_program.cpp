#include "worker/runner/hosted_program.h"

#include "worker/models/models.h"

namespace refrain::worker {
namespace {

Result<DType> parse_dtype(const char* field, const std::string& name) {
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float32") return DType::kFloat32;
  return fail_field(field, "{} \"{}\" is not supported; it must be bfloat16 or float32", field,
                    name);
}

Result<BuildOptions> build_options(const ModelConfig& model, const ipc::WorkerConfig& config) {
  BuildOptions options;
  REFRAIN_ASSIGN_OR_RETURN(options.activation_dtype, parse_dtype("dtype", config.dtype));
  options.kv_dtype = options.activation_dtype;
  if (config.kv_cache_dtype != "auto") {
    REFRAIN_ASSIGN_OR_RETURN(options.kv_dtype,
                             parse_dtype("kv_cache_dtype", config.kv_cache_dtype));
  }
  // float32 activations keep the checkpoint's own bfloat16 weights: widening them adds nothing.
  const bool narrow =
      options.activation_dtype == DType::kBFloat16 || model.torch_dtype == "bfloat16";
  options.weight_dtype = narrow ? DType::kBFloat16 : DType::kFloat32;
  options.max_positions = config.max_model_len;
  // Long prompts bring blocks for all their tokens at once, decodes one now and then.
  options.limits.step = {
      config.max_num_batched_tokens, config.max_num_seqs,
      4 * config.max_num_seqs + config.max_num_batched_tokens / config.block_size + 64};
  options.limits.max_blocks = (config.max_model_len + config.block_size - 1) / config.block_size;
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
  return at_least_one("max_num_batched_tokens", config.max_num_batched_tokens);
}

// One group: all layers run the same backend.
std::vector<AttentionGroupSupport> group_support(const Program& program,
                                                 const AttentionBackend& backend) {
  std::vector<AttentionGroupSupport> groups;
  for (size_t group = 0; group < program.kv_groups.size(); ++group) {
    groups.push_back(
        {fmt::format("attention of KV group {} ({})", group, backend.name), backend.support});
  }
  return groups;
}

Status add_few_rows(HostedProgram& hosted, const kernels::KernelTable& kernels,
                    const kernels::FewRows& few_rows,
                    const std::vector<std::string>& splitting_ops) {
  hosted.few_tokens = few_rows_limit(hosted.program, few_rows);
  if (hosted.few_tokens == 0) return {};
  const auto lower = [&](bool decode) -> Result<std::unique_ptr<Lowering>> {
    auto lowering = std::make_unique<Lowering>();
    lowering->program = lower_few_rows(hosted.program, few_rows, decode);
    REFRAIN_RETURN_IF_ERROR(validate(lowering->program, kernels));
    REFRAIN_ASSIGN_OR_RETURN(lowering->pieces, split_program(lowering->program, splitting_ops));
    lowering->plan = plan_memory(lowering->program, {hosted.few_tokens, hosted.few_tokens});
    return lowering;
  };
  REFRAIN_ASSIGN_OR_RETURN(hosted.few, lower(false));
  if (hosted.dispatcher->config().uniform_query_len == 1) {
    REFRAIN_ASSIGN_OR_RETURN(hosted.few_decode, lower(true));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<HostedProgram>> plan_program(const ModelConfig& model,
                                                    const ipc::WorkerConfig& config, int rank,
                                                    const Device& device) {
  REFRAIN_RETURN_IF_ERROR(check_limits(config));
  REFRAIN_ASSIGN_OR_RETURN(const BuildOptions options, build_options(model, config));
  auto hosted = std::make_unique<HostedProgram>();
  REFRAIN_ASSIGN_OR_RETURN(hosted->attention,
                           find_attention_backend(config.attention_backend, device.name()));
  REFRAIN_ASSIGN_OR_RETURN(Program plain, build_model(model, options));
  REFRAIN_ASSIGN_OR_RETURN(hosted->program,
                           shard(fuse(std::move(plain)), rank, config.tensor_parallel_size));
  REFRAIN_RETURN_IF_ERROR(validate(hosted->program, device.kernels()));

  const std::vector<std::string> splitting_ops =
      config.has_splitting_ops ? config.splitting_ops : default_splitting_ops();
  REFRAIN_ASSIGN_OR_RETURN(std::vector<PieceRange> pieces,
                           split_program(hosted->program, splitting_ops));
  const bool splittable = is_splittable(hosted->program, splitting_ops);
  if (splittable) hosted->pieces = std::move(pieces);
  REFRAIN_ASSIGN_OR_RETURN(
      CudagraphConfig resolved,
      resolve_cudagraph_config(cudagraph_options(config),
                               group_support(hosted->program, *hosted->attention), splittable));
  hosted->dispatcher = std::make_unique<CudagraphDispatcher>(std::move(resolved));
  // Steps that no key covers run in the same arena, so it fits the largest batch there can be.
  hosted->plan = plan_memory(hosted->program, hosted->program.max_sizes());
  // Other splitting ops may name what the lowerings for few rows do not have.
  if (splitting_ops == default_splitting_ops()) {
    kernels::FewRows few_rows = device.kernels().few_rows;
    if (config.disable_custom_all_reduce) few_rows.max_ranks = 0;
    REFRAIN_RETURN_IF_ERROR(add_few_rows(*hosted, device.kernels(), few_rows, splitting_ops));
  }
  for (Lowering* lowering : hosted->lowerings()) {
    lowering->warm_up = distinct_pieces(lowering->program);
    OpContext& context = lowering->context;
    context.program = &lowering->program;
    context.kernels = &device.kernels();
    context.attention = hosted->attention;
    context.weights = &hosted->weights;
    context.block_size = config.block_size;
    context.uniform_query_len = hosted->dispatcher->config().uniform_query_len;
  }
  return hosted;
}

}  // namespace refrain::worker
