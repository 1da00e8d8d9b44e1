// Start-up of the ProgramRunner: program, weights, buffers, cache, captures.

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "ipc/protocol/manifest_mode.h"
#include "runtime/base/log.h"
#include "worker/runner/program_runner.h"
#include "worker/weights/weights.h"

namespace refrain::worker {

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(RunnerOptions options, Device& device,
                                                         ProgressFn progress) {
  return ProgramRunner::create(std::move(options), device, std::move(progress));
}

ProgramRunner::ProgramRunner(RunnerOptions options, Device& device, ProgressFn progress)
    : options_(std::move(options)), device_(device), progress_(std::move(progress)) {}

namespace {

// Half of this rank's share of the cores; more than eight are never waited for.
int mask_threads(int32_t ranks) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / (2 * ranks), 1, 8);
}

Status hold_to_nccl(Communicator& group, const std::string& device) {
  if (group.size() == 1) return {};
  if (group.use_nccl_alone()) return {};
  return fail_field("disable_custom_all_reduce",
                    "disable_custom_all_reduce: {} has no NCCL to sum by", device);
}

}  // namespace

Result<std::unique_ptr<ProgramRunner>> ProgramRunner::create(RunnerOptions options, Device& device,
                                                             ProgressFn progress) {
  std::unique_ptr<ProgramRunner> runner(
      new ProgramRunner(std::move(options), device, std::move(progress)));
  const RunnerOptions& given = runner->options_;
  std::unique_ptr<HostedProgram> draft;
  if (given.config.draft_model) {
    REFRAIN_ASSIGN_OR_RETURN(
        draft, plan_draft(given.draft, given.model, given.config, given.rank, device));
  }
  REFRAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<HostedProgram> model,
      plan_program(given.model, given.config, given.rank, device, given.build,
                   draft == nullptr ? std::vector<StateGroup>() : draft->program.states,
                   given.config.draft_head == ipc::DraftHead::kNone
                       ? std::vector<int64_t>()
                       : hidden_states_of(given.config.draft_head, given.draft, given.model)));
  runner->programs_.push_back(std::move(model));
  if (draft != nullptr) runner->programs_.push_back(std::move(draft));
  REFRAIN_ASSIGN_OR_RETURN(
      runner->communicator_,
      device.create_communicator({given.group_token, given.rank, given.config.tensor_parallel_size,
                                  given.config.collective_timeout_ms, given.meet, given.listen_on,
                                  given.stop_joining}));
  if (given.config.disable_custom_all_reduce)
    REFRAIN_RETURN_IF_ERROR(hold_to_nccl(*runner->communicator_, device.name()));
  if (runner->hosted().few != nullptr) {
    const PeerSums sums = peer_sums(runner->hosted().few->program);
    if (sums.places > 0) runner->communicator_->reserve_peer_sums(sums.places, sums.cols);
  }
  runner->stream_ = device.create_stream();
  runner->pool_ = std::make_unique<GraphPool>(device);
  if (given.config.debug_cudagraph)
    runner->counter_check_ = std::make_unique<CounterCheck>(device, runner->stream_->counters());
  if (given.debug.time_steps) runner->idle_times_ = std::make_unique<IdleTimes>(given.rank);
  if (!given.debug.dump_values.empty()) {
    runner->dump_ = std::make_unique<ValueDump>(given.debug.dump_values, given.rank,
                                                given.debug.dump_steps, device);
  }
  for (const auto& program : runner->programs_) {
    for (Lowering* lowering : program->all_lowerings()) {
      OpContext& context = lowering->context;
      context.stream = runner->stream_.get();
      context.stream_ref = runner->stream_->ref();
      context.communicator = runner->communicator_.get();
      if (given.debug.nvtx) context.ranges = &device;
    }
  }
  return runner;
}

void ProgramRunner::report(ipc::StartPhase phase, int64_t done, int64_t total,
                           std::string detail) const {
  if (progress_) progress_({phase, done, total, std::move(detail)});
}

Result<Weights> ProgramRunner::load_checkpoint(const HostedProgram& of, const ModelConfig& model,
                                               const std::filesystem::path& directory) {
  const LoadProgress progress = [this](size_t done, size_t total) {
    report(ipc::StartPhase::kLoadWeights, static_cast<int64_t>(done), static_cast<int64_t>(total),
           "weights");
  };
  const ipc::WorkerConfig& config = options_.config;
  if (config.load_dummy)
    return make_dummy_weights(of.program, model, config.seed, device_, *stream_, progress);
  const LoadChecks checks{.finite = options_.debug.check_weights};
  return load_weights(of.program, model, directory, device_, *stream_, progress, checks);
}

Result<ipc::Loaded> ProgramRunner::load() {
  const TimePoint start = steady_clock().now();
  const ipc::WorkerConfig& config = options_.config;
  REFRAIN_ASSIGN_OR_RETURN(hosted().weights,
                           load_checkpoint(hosted(), options_.model, options_.model_directory));
  if (draft() != nullptr) {
    REFRAIN_ASSIGN_OR_RETURN(draft()->weights,
                             load_checkpoint(*draft(), options_.draft, options_.draft_directory));
    share_weights(draft()->program, draft()->weights, hosted().program, hosted().weights);
  }
  for (const auto& program : programs_)  // they take turns in one arena
    for (const Lowering* lowering : program->all_lowerings()) pool_->reserve(lowering->plan.bytes);
  pool_->commit();
  buffers_ = std::make_unique<InputBuffers>(device_, *stream_, hosted().program, config.block_size);
  if (draft() != nullptr) {
    draft_values_ = std::make_unique<ProgramValues>(device_, *stream_, draft()->program,
                                                    hosted().program, buffers_->addresses());
  }
  grammars_ = std::make_unique<GrammarMasks>(options_.model_directory, options_.model.vocab_size,
                                             options_.model.eos_token_ids, config.max_num_seqs,
                                             mask_threads(config.tensor_parallel_size));
  writer_ = std::make_unique<StepWriter>(*buffers_, config.max_model_len,
                                         options_.keep_logits || dump_ != nullptr, *grammars_);
  planner_ = std::make_unique<AttentionPlanner>(device_, hosted(), buffers_->addresses());
  if (hosted().lora_program) {
    adapters_ = std::make_unique<AdapterPlaces>(
        device_, *stream_, std::move(*hosted().lora_program), hosted().program.values.size());
    writer_->set_num_places(adapters_->num_places());
  }
  REFRAIN_ASSIGN_OR_RETURN(split_, SplitRun::create(device_, hosted(), config.split_prefill));
  if (hosted().scoring != nullptr) {
    scorer_ =
        std::make_unique<PromptScorer>(device_, *stream_, *hosted().scoring, config.max_num_seqs);
  }
  if (options_.poison_padding) poison_ = std::make_unique<Filler>(device_, 0xff);
  if (communicator_->size() > 1) {
    agreement_ = device_.allocate(sizeof(float), MemoryTag::kOther);
    agreement_pinned_ = device_.allocate_pinned(sizeof(float));
  }
  for (InFlight& flight : flights_) {
    flight.num_logprobs.reserve(static_cast<size_t>(config.max_num_seqs));
    flight.samples.reserve(static_cast<size_t>(config.max_num_seqs));
    flight.slots.reserve(static_cast<size_t>(config.max_num_seqs));
    flight.followers.reserve(static_cast<size_t>(config.max_num_seqs));
    flight.num_logits.reserve(static_cast<size_t>(config.max_num_seqs));
  }

  ipc::Loaded loaded;
  REFRAIN_ASSIGN_OR_RETURN(loaded.groups, fitting_groups());
  for (const auto& program : programs_)
    loaded.weight_bytes += static_cast<int64_t>(program->weights.bytes);
  loaded.seconds = seconds_between(start, steady_clock().now());
  return loaded;
}

// Those of the language model; the last of them are its draft model's.
std::vector<ipc::StateGroup> ProgramRunner::groups() const {
  const int32_t block_size = options_.config.block_size;
  std::vector<ipc::StateGroup> groups = describe_groups(hosted().program, block_size);
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].cascade_keys = cascade_keys(hosted(), i, options_.config.disable_cascade_attn);
  if (draft() == nullptr) return groups;
  const std::vector<ipc::StateGroup> of_draft = describe_groups(draft()->program, block_size);
  const size_t first = groups.size() - of_draft.size();
  for (size_t i = 0; i < of_draft.size(); ++i) groups[first + i].bytes = of_draft[i].bytes;
  return groups;
}

std::vector<int64_t> ProgramRunner::of_draft(const std::vector<int64_t>& num_blocks) const {
  return {num_blocks.end() - std::ssize(draft()->program.states), num_blocks.end()};
}

// The state groups with as many blocks as fit now.
Result<std::vector<ipc::StateGroup>> ProgramRunner::fitting_groups() const {
  // Host ranks share the machine's memory; an accelerator has its own.
  const bool shared = device_.kind() == DeviceKind::kHost;
  std::vector<ipc::StateGroup> groups = this->groups();
  REFRAIN_RETURN_IF_ERROR(choose_num_blocks(options_.config, device_.memory(), shared, groups));
  return groups;
}

namespace {

tl::unexpected<Error> cache_does_not_fit(const std::vector<int64_t>& blocks,
                                         const OutOfMemory& error) {
  return fail_field("kv_cache_memory_bytes",
                    "{} KV blocks do not fit: {} ({} bytes are missing); give fewer",
                    fmt::join(blocks, " and "), error.what(), error.missing);
}

}  // namespace

// A cache of a size that was asked for has its memory before the captures; one that takes what is
// left has it after them (CG-25).
Status ProgramRunner::init_cache(const std::vector<int64_t>& num_blocks) {
  REFRAIN_CHECK(buffers_ != nullptr, "init_cache before load");
  REFRAIN_CHECK(hosted().cache == nullptr, "the KV cache is made once");
  const int32_t block_size = options_.config.block_size;
  try {
    hosted().cache =
        std::make_unique<KvCache>(device_, *stream_, hosted().program, block_size, num_blocks);
    if (draft() != nullptr) {
      draft()->cache = std::make_unique<KvCache>(device_, *stream_, draft()->program, block_size,
                                                 of_draft(num_blocks));
    }
    if (options_.config.audit) {
      audit_ = std::make_unique<StepAudit>(device_, hosted(), *hosted().cache, *buffers_);
    }
    if (has_fixed_size(options_.config)) back_caches(num_blocks);
  } catch (const OutOfMemory& error) {
    return cache_does_not_fit(num_blocks, error);
  }
  std::vector<Addresses> with_places = buffers_->addresses();
  if (adapters_ != nullptr) {
    const std::vector<Addresses>& places = adapters_->addresses();
    with_places.insert(with_places.end(), places.begin() + std::ssize(with_places), places.end());
  }
  for (const auto& program : programs_) {
    const bool first = program == programs_.front();
    for (Lowering* lowering : program->lowerings()) {
      const bool lora = lowering == program->lora.get() || lowering == program->some_lora.get();
      const std::vector<Addresses>& of_first = lora ? with_places : buffers_->addresses();
      REFRAIN_RETURN_IF_ERROR(bind_values(lowering->context, lowering->plan, pool_->arena(),
                                          program->cache->addresses(),
                                          first ? of_first : draft_values_->addresses()));
    }
  }
  if (scorer_ == nullptr) return {};
  return scorer_->bind(hosted().weights, pool_->arena(), hosted().cache->addresses(),
                       buffers_->addresses());
}

// Throws OutOfMemory; what one cache has got by then it keeps.
void ProgramRunner::back_caches(const std::vector<int64_t>& num_blocks) {
  if (draft() != nullptr) draft()->cache->back(of_draft(num_blocks));
  hosted().cache->back(num_blocks);
  num_blocks_ = num_blocks;
}

// What the captures left; less where others on the same GPU have taken of it meanwhile.
Result<ipc::Ready> ProgramRunner::back_cache() {
  REFRAIN_CHECK(hosted().cache != nullptr, "back_cache before init_cache");
  const ipc::WorkerConfig& config = options_.config;
  const bool fixed = has_fixed_size(config);
  std::vector<int64_t> blocks = hosted().cache->max_blocks();
  // The host device gives pages when they are first used: what it has free says little by now.
  if (!fixed && device_.kind() != DeviceKind::kHost) {
    REFRAIN_ASSIGN_OR_RETURN(const std::vector<ipc::StateGroup> fitting, fitting_groups());
    for (size_t i = 0; i < blocks.size(); ++i)
      blocks[i] = std::min(blocks[i], fitting[i].num_blocks);
  }
  while (num_blocks_ != blocks) {
    try {
      back_caches(blocks);
    } catch (const OutOfMemory& error) {
      std::vector<int64_t> fewer = fewer_blocks(config, groups(), blocks, error.missing);
      if (fixed || fewer.empty()) return cache_does_not_fit(blocks, error);
      log::warn("{} KV blocks do not fit ({}); trying {}", fmt::join(blocks, " and "), error.what(),
                fmt::join(fewer, " and "));
      blocks = std::move(fewer);
    }
  }
  writer_->set_num_blocks(num_blocks_);
  return make_ready();
}

// A batch as large as the key, in slots nobody has yet; every block is the reserved one.
void ProgramRunner::prepare_capture_batch(const BatchDescriptor& key) {
  const kernels::StepLayout& layout = buffers_->layout();
  uint8_t* block = buffers_->next().block;
  stream_->synchronize();  // a run before may still be reading it
  std::memset(block, 0, layout.total);
  const auto put = [block](size_t offset, int32_t row, int32_t value) {
    reinterpret_cast<int32_t*>(block + offset)[row] = value;
  };
  const int32_t longest = options_.config.max_model_len;
  const int32_t per_row =
      key.uniform ? key.num_tokens / key.num_reqs : std::min(key.num_tokens, longest);
  int32_t rows = 0;
  for (int32_t left = key.num_tokens; left > 0 && rows < key.num_reqs; ++rows) {
    const int32_t tokens = std::min(left, per_row);
    put(layout.row_slot, rows, rows);
    put(layout.row_query_len, rows, tokens);
    // Decodes attend over a context; a prompt starts from none.
    put(layout.row_context, rows,
        key.uniform ? std::max(0, std::min(options_.config.block_size, longest - tokens)) : 0);
    block[layout.row_flags + static_cast<size_t>(rows)] = kernels::kRowSamples;
    left -= tokens;
  }
  kernels::StepHeader header;
  header.num_tokens = key.uniform ? key.num_tokens : std::min(key.num_tokens, per_row * rows);
  header.num_reqs = rows;
  std::memcpy(block + layout.header, &header, sizeof header);
  planner_->plan(layout, block, rows, buffers_->begin_turn(), *stream_);
}

// A sum over ranks of "failed here", so that every rank drops the same keys.
bool ProgramRunner::any_rank_failed(bool failed_here) {
  auto* failed = static_cast<float*>(agreement_pinned_->data());
  *failed = failed_here ? 1.0f : 0.0f;
  stream_->copy(agreement_->data(), failed, sizeof(float));
  communicator_->all_reduce(*stream_, {agreement_->data(), DType::kFloat32, 1}, 1, {1, nullptr});
  stream_->copy(failed, agreement_->data(), sizeof(float));
  stream_->synchronize();
  return *failed > 0;
}

// One size of every range of rows beyond the largest graph for a prompt.
std::vector<BatchDescriptor> ProgramRunner::uncaptured_sizes(const HostedProgram& program) const {
  const auto planned_rows = device_.kernels().planned_rows;
  std::vector<BatchDescriptor> sizes;
  if (planned_rows == nullptr) return sizes;
  int32_t rows = 0;
  for (const auto mode : {ipc::RuntimeMode::kPiecewise, ipc::RuntimeMode::kFull}) {
    for (const BatchDescriptor& key : program.dispatcher->keys(mode)) {
      if (!key.uniform) rows = std::max(rows, key.num_tokens);
    }
  }
  const ipc::WorkerConfig& config = options_.config;
  while (rows < config.max_num_batched_tokens) {
    rows = std::min(planned_rows(rows + 1), config.max_num_batched_tokens);
    sizes.push_back({rows, std::min(rows, config.max_num_seqs)});
  }
  // What its linears choose is chosen by then; its own kernels are loaded once.
  if (program.lora != nullptr)
    sizes.push_back({config.max_num_batched_tokens, config.max_num_seqs, false, true});
  for (rows = 0; rows < program.some_lora_tokens;) {
    rows = planned_rows(rows + 1);
    if (rows > config.max_num_batched_tokens) break;
    sizes.push_back({rows, std::min(rows, config.max_num_seqs), false, true});
  }
  return sizes;
}

Status ProgramRunner::capture() {
  REFRAIN_CHECK(hosted().cache != nullptr, "capture before init_cache");
  capture_program(hosted(), "");
  if (draft() != nullptr) capture_program(*draft(), std::string(ipc::kDraftMode));
  if (scorer_ != nullptr) scorer_->warm_up();
  stream_->synchronize();
  return {};
}

// `prefix` of what is told of it.
void ProgramRunner::capture_program(HostedProgram& program, const std::string& prefix) {
  CaptureHooks hooks;
  hooks.prepare = [this, &program](const BatchDescriptor& key) {
    prepare_capture_batch(key);
    // What the language model passes to others its first ops have made.
    if (&program != &hosted()) launch_ops(hosted().context, {0, 2}, key);
  };
  if (communicator_->size() > 1) {
    hooks.any_rank_failed = [this](bool failed) { return any_rank_failed(failed); };
  }
  hooks.progress = [this, &prefix](const CaptureProgress& progress) {
    report(ipc::StartPhase::kCapture, progress.done, progress.total, prefix + progress.detail);
  };
  const CaptureJob job{
      [&program](const BatchDescriptor& key) -> const Lowering& { return program.lowering(key); },
      device_.warmup_runs(), options_.config.debug_cudagraph, uncaptured_sizes(program)};
  CaptureResult result = capture_all(job, hooks, *pool_, *program.dispatcher, program.executables);
  for (ipc::ManifestEntry& entry : result.manifest) {
    entry.mode = prefix + entry.mode;
    captured_.manifest.push_back(std::move(entry));
  }
  for (const std::string& warning : result.warnings) captured_.warnings.push_back(prefix + warning);
}

ipc::Ready ProgramRunner::make_ready() const {
  const CudagraphConfig& config = hosted().dispatcher->config();
  ipc::Ready ready;
  const bool dropped = pool_->counters().num_captures_dropped > 0;
  ready.cudagraph_mode = to_string(dropped ? hosted().dispatcher->mode_in_force() : config.mode);
  ready.uniform_query_len = config.uniform_query_len();
  ready.capture_sizes = config.capture_sizes;
  ready.manifest = captured_.manifest;
  ready.arena_bytes = static_cast<int64_t>(pool_->arena_bytes());
  ready.warnings = config.warnings;
  ready.warnings.insert(ready.warnings.end(), captured_.warnings.begin(), captured_.warnings.end());
  for (const std::string& kind : stream_->slow_launches()) {
    ready.warnings.push_back(fmt::format("{}: a slow kernel, no better one takes it", kind));
  }
  ready.num_blocks = num_blocks_;
  const MemoryAccount memory = device_.memory();
  for (int tag = 0; tag < kNumMemoryTags; ++tag) {
    ready.memory_tags.emplace_back(to_string(static_cast<MemoryTag>(tag)));
    ready.memory_bytes.push_back(static_cast<int64_t>(memory.by_tag[tag]));
  }
  return ready;
}

}  // namespace refrain::worker
