#include "worker/runner/hosted_program.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "worker/models/models.h"
#include "worker/runner/build_options.h"
#include "worker/runner/hidden_states.h"

namespace refrain::worker {
namespace {

using Backends = std::vector<const AttentionBackend*>;

// Each group with blocks has a backend, whose support is the group's.
Result<Backends> choose_backends(std::vector<StateGroup>& groups, const std::string& option,
                                 const Device& device, bool target) {
  Backends backends;
  for (StateGroup& group : groups) {
    const AttentionBackend* backend = nullptr;
    if (group.kind == StateKind::kPaged) {
      REFRAIN_ASSIGN_OR_RETURN(
          backend, find_attention_backend(backend_of_group(option, group.name), device));
      if (!target && backend->plan != kernels::AttentionPlanKind::kNone)
        backend = attention_backends(device.kind()).front();
      group.support = backend->support;
    }
    backends.push_back(backend);
  }
  return backends;
}

// Whose attention has a plan: the backend makes one of every step, or cascade attention may run.
// Drafts are of lengths that the host does not know while a step is made: their backend has none.
std::vector<bool> groups_with_plans(const std::vector<StateGroup>& groups, const Backends& backends,
                                    const ipc::WorkerConfig& config) {
  std::vector<bool> planned(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    const bool cascades = backends[i] != nullptr && !config.disable_cascade_attn &&
                          !config.batch_invariant && backends[i]->cascade_bytes > 0 &&
                          groups[i].window == 0;
    planned[i] = backends[i] != nullptr &&
                 (backends[i]->plan != kernels::AttentionPlanKind::kNone || cascades);
  }
  return planned;
}

// Whose attention takes its requests' keys as they are shared out on the device.
std::vector<bool> groups_with_shares(const Backends& backends, const kernels::KernelTable& table) {
  std::vector<bool> groups(backends.size());
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i] = table.share_keys != nullptr && backends[i] != nullptr &&
                backends[i]->plan == kernels::AttentionPlanKind::kNone;
  return groups;
}

// --batch-invariant: what would follow from the other rows of a step. On the host nothing does, but
// for plans, which split a row's keys by how many there are.
Status check_invariant(const ipc::WorkerConfig& config, const Backends& backends,
                       const Device& device) {
  if (!config.batch_invariant) return {};
  if (config.max_loras > 0 && device.kind() == DeviceKind::kCuda)
    return fail_field("batch_invariant",
                      "batch_invariant: the LoRA kernels of {} follow the number of rows; serve "
                      "without enable_lora, or merged adapters",
                      device.name());
  for (const AttentionBackend* backend : backends) {
    if (backend == nullptr || backend->plan == kernels::AttentionPlanKind::kNone) continue;
    return fail_field("attention_backend",
                      "attention_backend: {} splits a row's keys by their number, which "
                      "batch_invariant excludes",
                      backend->name);
  }
  return {};
}

// FlashInfer's kernels take some models alone.
Status check_backends(const Program& program, const Backends& backends) {
  for (size_t i = 0; i < backends.size(); ++i) {
    const AttentionHeads heads = attention_heads_of(program, static_cast<int>(i));
    if (heads.head_dim == 0 || takes_heads(*backends[i], heads.cache, heads.out, heads.head_dim))
      continue;
    return fail_field("attention_backend",
                      "attention_backend: {} takes bfloat16 and heads of 64 or 128; this model has "
                      "heads of {} in {}; leave the option out",
                      backends[i]->name, heads.head_dim, to_string(heads.cache));
  }
  return {};
}

// CG-3: the least of them decides.
std::vector<AttentionGroupSupport> group_support(const std::vector<StateGroup>& groups,
                                                 const Backends& backends) {
  std::vector<AttentionGroupSupport> all;
  for (size_t i = 0; i < groups.size(); ++i) {
    const char* op = backends[i] == nullptr ? "state" : backends[i]->name;
    all.push_back({fmt::format("state group {} ({})", groups[i].name, op), groups[i].support});
  }
  return all;
}

// For sizes of up to `sizes`. `splitting_ops`: null where it is not split.
Status plan_lowering(Lowering& lowering, Program program, const ExtentSizes& sizes,
                     const kernels::KernelTable& kernels,
                     const std::vector<std::string>* splitting_ops) {
  lowering.program = std::move(program);
  REFRAIN_RETURN_IF_ERROR(validate(lowering.program, kernels));
  if (splitting_ops != nullptr) {
    REFRAIN_ASSIGN_OR_RETURN(lowering.pieces, split_program(lowering.program, *splitting_ops));
  }
  lowering.plan = plan_memory(lowering.program, sizes);
  return {};
}

Status add_lowerings(HostedProgram& hosted, const kernels::KernelTable& kernels,
                     const Backends& backends, const kernels::FewRows& few_rows,
                     const std::vector<std::string>& splitting_ops) {
  if (few_rows.max_rows == 0) return {};
  const Program& plain = hosted.program;
  // RoPE and attention in one launch is of no other backend's.
  const bool plans = std::ranges::any_of(backends, [](const AttentionBackend* backend) {
    return backend != nullptr && backend->plan != kernels::AttentionPlanKind::kNone;
  });
  const auto& lens = hosted.dispatcher->config().uniform_query_lens;
  const int32_t few = few_rows_limit(plain, few_rows);
  for (const bool decode : {true, false}) {
    if (decode && (few == 0 || plans || std::ranges::count(lens, 1) == 0)) continue;
    std::map<int32_t, Program> programs;
    if (few > 0) programs[few] = lower_few_rows(plain, few_rows, decode);
    for (const int32_t rows :
         {decode ? some_decode_limit(plain, few_rows) : 0, few_rows.max_unit_norm_rows,
          few_rows.max_plain_rows, few_rows.max_silu_rows})
      if (rows > few) programs[rows] = lower_some_rows(plain, few_rows, rows, decode);
    for (auto at = programs.begin(); at != programs.end(); ++at) {
      auto& [rows, program] = *at;
      const auto more = std::next(at);  // the same for more rows, or the plain one, will do
      if (program.ops == (more == programs.end() ? plain : more->second).ops) continue;
      auto form = std::make_unique<KeyLowering>();
      form->rows = rows;
      form->decode = decode;
      if (rows == few_rows.max_silu_rows) form->takes = few_rows.fuses_silu;
      REFRAIN_RETURN_IF_ERROR(
          plan_lowering(*form, std::move(program), {rows, rows, rows}, kernels, &splitting_ops));
      hosted.for_keys.push_back(std::move(form));
    }
  }
  return {};
}

Status add_lora_lowerings(HostedProgram& hosted, const ipc::WorkerConfig& config,
                          const kernels::KernelTable& kernels,
                          const std::vector<std::string>& splitting_ops) {
  if (config.max_loras == 0) return {};
  hosted.lora_program = add_lora(hosted.program, {config.max_loras, config.max_lora_rank});
  const Program& with = hosted.lora_program->program;
  const auto* splits = hosted.pieces.empty() ? nullptr : &splitting_ops;
  hosted.lora = std::make_unique<Lowering>();
  hosted.lora->lora = true;
  REFRAIN_RETURN_IF_ERROR(plan_lowering(*hosted.lora, with, with.max_sizes(), kernels, splits));
  // Other splitting ops may name what this one does not have.
  if (splitting_ops != default_splitting_ops()) return {};
  Program some = lower_lora_rows(with, kernels.few_rows);
  if (some.ops == with.ops) return {};
  KeyLowering& form = *hosted.for_keys.emplace_back(std::make_unique<KeyLowering>());
  const int32_t rows = form.rows = kernels.few_rows.max_plain_rows;
  form.lora = true;
  return plan_lowering(form, std::move(some), {rows, rows, rows}, kernels, splits);
}

// By name: values with memory of their own have one each.
std::vector<ValueId> same_values(const Program& program, const Program& hosted) {
  const auto has_memory = [](const Value& value) {
    return value.storage != Storage::kArena || value.kind == ValueKind::kWeight;
  };
  std::unordered_map<std::string, ValueId> ids;
  for (size_t i = 0; i < hosted.values.size(); ++i)
    if (has_memory(hosted.values[i])) ids[hosted.values[i].name] = static_cast<ValueId>(i);
  std::vector<ValueId> same;
  for (const Value& value : program.values) {
    const auto found = has_memory(value) ? ids.find(value.name) : ids.end();
    same.push_back(found == ids.end() ? kNoValue : found->second);
  }
  return same;
}

// A device without the kernel has none.
Status add_scoring(HostedProgram& hosted, Program program, const kernels::KernelTable& kernels) {
  if (kernels.score_tokens == nullptr) return {};
  if (kernels.few_rows.max_plain_rows > 0) program = add_residuals(std::move(program));
  ScoringProgram scoring = score_prompts(std::move(program));
  hosted.scoring = std::make_unique<ScoringLowering>();
  ScoringLowering& lowering = *hosted.scoring;
  lowering.program = std::move(scoring.program);
  lowering.program.states = hosted.program.states;
  lowering.values = scoring.values;
  lowering.hosted = same_values(lowering.program, hosted.program);
  REFRAIN_RETURN_IF_ERROR(validate(lowering.program, kernels));
  lowering.plan = plan_memory(lowering.program, lowering.program.max_sizes());
  return {};
}

// What a model whose replicas step together cannot be served with: each would run something of its
// own beside the common step (CG-17).
Status check_replicas(const Program& program, const ipc::WorkerConfig& config) {
  if (program.replicas == 1) return {};
  const auto refuse = [&](const char* field) {
    return fail_field(field, "{}: the replicas of model {} step together, which excludes it", field,
                      program.name);
  };
  if (config.max_loras > 0) return refuse("max_loras");
  if (config.draft_model) return refuse("draft_model");
  if (config.split_prefill > 1) return refuse("split_prefill");
  if (config.audit) return refuse("audit");
  return {};
}

// Fuses, shards, validates, splits and plans what was built, and resolves its keys. A target has
// further lowerings: for few rows, for adapters and for prompts' scores.
Result<std::unique_ptr<HostedProgram>> host(Program plain, const ipc::WorkerConfig& config,
                                            int rank, const Device& device, bool target) {
  auto hosted = std::make_unique<HostedProgram>();
  REFRAIN_RETURN_IF_ERROR(check_replicas(plain, config));
  const bool alone = plain.replicas == 1;
  const bool scores =
      target && alone && !config.draft_model && config.max_loras == 0 && config.pooling.empty();
  std::optional<Program> all_rows;
  if (scores) {
    REFRAIN_ASSIGN_OR_RETURN(all_rows,
                             shard(fuse_all_rows(plain), rank, config.tensor_parallel_size));
  }
  REFRAIN_ASSIGN_OR_RETURN(hosted->program,
                           shard(fuse(std::move(plain)), rank, config.tensor_parallel_size));
  REFRAIN_ASSIGN_OR_RETURN(
      const Backends backends,
      choose_backends(hosted->program.states, config.attention_backend, device, target));
  REFRAIN_RETURN_IF_ERROR(check_backends(hosted->program, backends));
  REFRAIN_RETURN_IF_ERROR(check_invariant(config, backends, device));
  const std::vector<bool> planned = groups_with_plans(hosted->program.states, backends, config);
  const auto add_shares = [&](Program program) {
    const kernels::KernelTable& table = device.kernels();
    return add_key_shares(std::move(program), groups_with_shares(backends, table),
                          table.key_shares_ints);
  };
  if (device.kernels().few_rows.max_plain_rows > 0) {
    hosted->program = add_residuals(std::move(hosted->program));
  }
  if (device.kernels().fold_norm != nullptr)
    hosted->program = fold_norms(std::move(hosted->program));
  if (target) hosted->program = add_attention_plans(std::move(hosted->program), planned);
  hosted->program = add_shares(std::move(hosted->program));
  const bool publishes = target && config.publish_layers;
  if (publishes) hosted->program = publish_layers(std::move(hosted->program));
  REFRAIN_RETURN_IF_ERROR(validate(hosted->program, device.kernels()));

  const std::vector<std::string> splitting_ops =
      config.has_splitting_ops ? config.splitting_ops : default_splitting_ops();
  REFRAIN_ASSIGN_OR_RETURN(std::vector<PieceRange> pieces,
                           split_program(hosted->program, splitting_ops));
  const bool splittable = is_splittable(hosted->program, splitting_ops);
  if (splittable) hosted->pieces = std::move(pieces);
  CudagraphOptions options = cudagraph_options(config);
  if (!target) options.capture_hidden_mode = ipc::CaptureHiddenMode::kNull;  // nobody reads a draft
  REFRAIN_ASSIGN_OR_RETURN(
      CudagraphConfig resolved,
      resolve_cudagraph_config(options, group_support(hosted->program.states, backends),
                               splittable));
  hosted->dispatcher = std::make_unique<CudagraphDispatcher>(std::move(resolved));
  // Steps that no key covers run in the same arena, so it fits the largest batch there can be.
  hosted->plan = plan_memory(hosted->program, hosted->program.max_sizes());
  // Other splitting ops may name what the lowerings for few rows do not have; and rows of all
  // replicas are not few.
  if (target && alone && splitting_ops == default_splitting_ops()) {
    kernels::FewRows few_rows = device.kernels().few_rows;
    if (config.disable_custom_all_reduce) few_rows.max_ranks = 0;
    REFRAIN_RETURN_IF_ERROR(
        add_lowerings(*hosted, device.kernels(), backends, few_rows, splitting_ops));
  }
  if (target) {
    REFRAIN_RETURN_IF_ERROR(add_lora_lowerings(*hosted, config, device.kernels(), splitting_ops));
  }
  if (scores) {
    all_rows = add_shares(add_attention_plans(std::move(*all_rows), planned));
    if (publishes) all_rows = publish_layers(std::move(*all_rows));
    REFRAIN_RETURN_IF_ERROR(add_scoring(*hosted, std::move(*all_rows), device.kernels()));
  }
  for (const Lowering* lowering : hosted->lowerings()) {
    const ipc::CaptureHiddenMode left = hidden_left(lowering->program);
    REFRAIN_CHECK(left == options.capture_hidden_mode, "{} leaves hidden states as {}, its keys {}",
                  lowering->program.name, ipc::to_string(left),
                  ipc::to_string(options.capture_hidden_mode));
  }
  for (Lowering* lowering : hosted->all_lowerings()) {
    lowering->warm_up = distinct_pieces(lowering->program);
    OpContext& context = lowering->context;
    context.program = &lowering->program;
    context.kernels = &device.kernels();
    context.attention = backends;
    context.weights = hosted->weights.get();
    context.block_size = config.block_size;
  }
  return hosted;
}

Status check_draft(const ModelConfig& draft, const ModelConfig& model) {
  if (draft.vocab_size != model.vocab_size) {
    return fail_field("speculative_config",
                      "speculative_config: the draft model has a vocabulary of {} tokens, the "
                      "model one of {}; they must be the same",
                      draft.vocab_size, model.vocab_size);
  }
  for (int64_t layer = 1; layer < draft.num_layers; ++layer) {
    if (draft.window_of(layer) == draft.window_of(0)) continue;
    return fail_field("speculative_config",
                      "speculative_config: the draft model has layers with and without a sliding "
                      "window; its layers must keep the same");
  }
  return {};
}

template <class T>
std::unique_ptr<T> copy_of(const std::unique_ptr<T>& lowering) {
  return lowering == nullptr ? nullptr : std::make_unique<T>(*lowering);
}

}  // namespace

std::unique_ptr<HostedProgram> for_another_context(const HostedProgram& planned) {
  auto hosted = std::make_unique<HostedProgram>();
  static_cast<Lowering&>(*hosted) = planned;
  hosted->weights = planned.weights;
  hosted->dispatcher = copy_of(planned.dispatcher);
  for (const auto& form : planned.for_keys) hosted->for_keys.push_back(copy_of(form));
  hosted->lora = copy_of(planned.lora);
  hosted->scoring = copy_of(planned.scoring);
  for (Lowering* lowering : hosted->all_lowerings()) lowering->context.program = &lowering->program;
  return hosted;
}

// What a role adds has its values behind all others, so that these have kept their numbers.
void take_over(HostedProgram& program, const HostedProgram& before) {
  const std::vector<Value>& values = program.program.values;
  const std::vector<Value>& old = before.program.values;
  for (size_t i = 0; i < std::max(values.size(), old.size()); ++i) {
    const auto has_memory = [i](const std::vector<Value>& all) {
      return i < all.size() && (all[i].kind == ValueKind::kWeight || all[i].is_paged());
    };
    if (!has_memory(values) && !has_memory(old)) continue;
    REFRAIN_CHECK(has_memory(values) && has_memory(old) && values[i].name == old[i].name,
                  "{}: another role has other weights or blocks", program.program.name);
  }
  program.weights = before.weights;
  program.cache = before.cache;
  for (Lowering* lowering : program.all_lowerings())
    lowering->context.weights = program.weights.get();
}

Result<std::unique_ptr<HostedProgram>> plan_program(const ModelConfig& model,
                                                    const ipc::WorkerConfig& config, int rank,
                                                    const Device& device, const BuildModel& build,
                                                    const std::vector<StateGroup>& of_draft,
                                                    const std::vector<int64_t>& hidden) {
  REFRAIN_RETURN_IF_ERROR(check_limits(config));
  REFRAIN_ASSIGN_OR_RETURN(BuildOptions options, build_options(model, config));
  options.limits.draft_groups = of_draft;
  options.limits.hidden_states = hidden;
  REFRAIN_ASSIGN_OR_RETURN(Program plain, build(model, options));
  return host(std::move(plain), config, rank, device, true);
}

Result<std::unique_ptr<HostedProgram>> plan_draft(const ModelConfig& draft,
                                                  const ModelConfig& model,
                                                  const ipc::WorkerConfig& config, int rank,
                                                  const Device& device) {
  REFRAIN_RETURN_IF_ERROR(check_limits(config));
  REFRAIN_RETURN_IF_ERROR(check_draft(draft, model));
  REFRAIN_ASSIGN_OR_RETURN(BuildOptions options, build_options(draft, config));
  options.limits.drafts = true;
  const bool head = config.draft_head != ipc::DraftHead::kNone;
  if (head) {
    REFRAIN_ASSIGN_OR_RETURN(const BuildOptions of_model, build_options(model, config));
    options.limits.head = true;
    options.head = {config.draft_head, of_model.weight_dtype, model.tie_word_embeddings};
  }
  REFRAIN_ASSIGN_OR_RETURN(Program plain,
                           head ? build_head(draft, model, options) : build_model(draft, options));
  plain.name = "draft." + plain.name;
  ipc::WorkerConfig without = config;
  without.max_loras = 0;
  if (config.draft_tensor_parallel_size == 0 || config.tensor_parallel_size == 1)
    return host(std::move(plain), without, rank, device, false);
  // Each rank has all of it and makes the same drafts, without a collective.
  REFRAIN_CHECK(config.draft_tensor_parallel_size == 1 && !head,
                "a draft model is on every rank alone or shared by all");
  without.tensor_parallel_size = 1;
  return host(std::move(plain), without, 0, device, false);
}

}  // namespace refrain::worker
