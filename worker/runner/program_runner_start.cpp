// Start-up of the ProgramRunner: program, weights, buffers, cache, captures.

#include <algorithm>
#include <cstring>

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

Status hold_to_nccl(Communicator& group, const std::string& device) {
  if (group.size() == 1) return {};
  const std::vector<std::string> ways = group.sum_ways(1);
  if (std::ranges::find(ways, kNcclWay) == ways.end()) {
    return fail_field("disable_custom_all_reduce",
                      "disable_custom_all_reduce: {} has no NCCL to sum by", device);
  }
  group.hold_to_sum_way(kNcclWay);
  return {};
}

}  // namespace

Result<std::unique_ptr<ProgramRunner>> ProgramRunner::create(RunnerOptions options, Device& device,
                                                             ProgressFn progress) {
  std::unique_ptr<ProgramRunner> runner(
      new ProgramRunner(std::move(options), device, std::move(progress)));
  const RunnerOptions& given = runner->options_;
  REFRAIN_ASSIGN_OR_RETURN(runner->hosted_,
                           plan_program(given.model, given.config, given.rank, device));
  REFRAIN_ASSIGN_OR_RETURN(
      runner->communicator_,
      device.create_communicator(given.group_token, given.rank, given.config.tensor_parallel_size,
                                 given.config.collective_timeout_ms));
  if (given.config.disable_custom_all_reduce)
    REFRAIN_RETURN_IF_ERROR(hold_to_nccl(*runner->communicator_, device.name()));
  if (runner->hosted_->few != nullptr) {
    const PeerSums sums = peer_sums(runner->hosted_->few->program);
    if (sums.places > 0) runner->communicator_->reserve_peer_sums(sums.places, sums.cols);
  }
  runner->stream_ = device.create_stream();
  runner->pool_ = std::make_unique<GraphPool>(device);
  if (given.config.debug_cudagraph) {
    runner->counter_check_ = std::make_unique<CounterCheck>(device, runner->stream_->counters());
  }
  if (given.debug.time_steps) runner->idle_times_ = std::make_unique<IdleTimes>(given.rank);
  if (!given.debug.dump_values.empty()) {
    runner->dump_ = std::make_unique<ValueDump>(given.debug.dump_values, given.rank,
                                                given.debug.dump_steps, device);
  }
  for (Lowering* lowering : runner->hosted_->lowerings()) {
    OpContext& context = lowering->context;
    context.stream = runner->stream_.get();
    context.stream_ref = runner->stream_->ref();
    context.communicator = runner->communicator_.get();
    if (given.debug.nvtx) context.ranges = &device;
  }
  return runner;
}

void ProgramRunner::report(ipc::StartPhase phase, int64_t done, int64_t total,
                           std::string detail) const {
  if (progress_) progress_({phase, done, total, std::move(detail)});
}

Result<Weights> ProgramRunner::load_checkpoint() {
  const LoadProgress progress = [this](size_t done, size_t total) {
    report(ipc::StartPhase::kLoadWeights, static_cast<int64_t>(done), static_cast<int64_t>(total),
           "weights");
  };
  const ipc::WorkerConfig& config = options_.config;
  if (config.load_dummy) {
    return make_dummy_weights(hosted_->program, options_.model, config.seed, device_, *stream_,
                              progress);
  }
  const LoadChecks checks{.finite = options_.debug.check_weights};
  return load_weights(hosted_->program, options_.model, options_.model_directory, device_, *stream_,
                      progress, checks);
}

Result<ipc::Loaded> ProgramRunner::load() {
  const TimePoint start = steady_clock().now();
  const ipc::WorkerConfig& config = options_.config;
  REFRAIN_ASSIGN_OR_RETURN(hosted_->weights, load_checkpoint());
  for (const Lowering* lowering : hosted_->lowerings()) pool_->reserve(lowering->plan.bytes);
  pool_->commit();
  buffers_ = std::make_unique<InputBuffers>(device_, *stream_, hosted_->program, config.block_size);
  writer_ = std::make_unique<StepWriter>(*buffers_, config.max_model_len,
                                         options_.keep_logits || dump_ != nullptr);
  if (options_.poison_padding) poison_ = std::make_unique<Filler>(device_, 0xff);
  if (communicator_->size() > 1) {
    agreement_ = device_.allocate(sizeof(float), MemoryTag::kOther);
    agreement_pinned_ = device_.allocate_pinned(sizeof(float));
  }
  for (InFlight& flight : flights_) {
    flight.num_logprobs.reserve(static_cast<size_t>(config.max_num_seqs));
    flight.samples.reserve(static_cast<size_t>(config.max_num_seqs));
    flight.slots.reserve(static_cast<size_t>(config.max_num_seqs));
  }

  ipc::Loaded loaded;
  loaded.kv_block_bytes = kv_block_bytes(kv_layers(hosted_->program), config.block_size);
  REFRAIN_ASSIGN_OR_RETURN(loaded.num_kv_blocks, fitting_kv_blocks());
  loaded.weight_bytes = static_cast<int64_t>(hosted_->weights.bytes);
  loaded.seconds = seconds_between(start, steady_clock().now());
  return loaded;
}

Result<int64_t> ProgramRunner::fitting_kv_blocks() const {
  // Host ranks share the machine's memory; an accelerator has its own.
  const bool shared = device_.name().starts_with("host");
  const ipc::WorkerConfig& config = options_.config;
  return choose_num_blocks(config, kv_block_bytes(kv_layers(hosted_->program), config.block_size),
                           device_.memory(), shared);
}

namespace {

tl::unexpected<Error> cache_does_not_fit(int64_t blocks, const OutOfMemory& error) {
  return fail_field("kv_cache_memory_bytes",
                    "{} KV blocks do not fit: {} ({} bytes are missing); give fewer", blocks,
                    error.what(), error.missing);
}

}  // namespace

// A cache of a size that was asked for has its memory before the captures; one that takes what is
// left has it after them (CG-25).
Status ProgramRunner::init_cache(int64_t num_kv_blocks) {
  REFRAIN_CHECK(buffers_ != nullptr, "init_cache before load");
  REFRAIN_CHECK(kv_cache_ == nullptr, "the KV cache is made once");
  try {
    kv_cache_ = std::make_unique<KvCache>(device_, *stream_, kv_layers(hosted_->program),
                                          options_.config.block_size, num_kv_blocks);
    if (options_.config.audit) {
      audit_ = std::make_unique<StepAudit>(device_, *hosted_, *kv_cache_, buffers_->sizes());
    }
    if (has_fixed_size(options_.config)) kv_cache_->back(num_kv_blocks);
  } catch (const OutOfMemory& error) {
    return cache_does_not_fit(num_kv_blocks, error);
  }
  for (Lowering* lowering : hosted_->lowerings()) {
    REFRAIN_RETURN_IF_ERROR(bind_values(lowering->context, lowering->plan, pool_->arena(),
                                        kv_cache_->addresses(), buffers_->addresses()));
  }
  return {};
}

// What the captures left; less where others on the same GPU have taken of it meanwhile.
Result<ipc::Ready> ProgramRunner::back_cache() {
  REFRAIN_CHECK(kv_cache_ != nullptr, "back_cache before init_cache");
  const ipc::WorkerConfig& config = options_.config;
  const bool fixed = has_fixed_size(config);
  int64_t blocks = kv_cache_->max_blocks();
  // The host device gives pages when they are first used: what it has free says little by now.
  if (!fixed && !device_.name().starts_with("host")) {
    REFRAIN_ASSIGN_OR_RETURN(const int64_t fitting, fitting_kv_blocks());
    blocks = std::min(blocks, fitting);
  }
  const int64_t block_bytes = kv_block_bytes(kv_cache_->layers(), config.block_size);
  const int64_t one_request = (config.max_model_len + config.block_size - 1) / config.block_size;
  while (kv_cache_->num_blocks() < blocks) {
    try {
      kv_cache_->back(blocks);
    } catch (const OutOfMemory& error) {
      const int64_t fewer = blocks - static_cast<int64_t>(error.missing) / block_bytes - 1;
      if (fixed || fewer < one_request + 1) return cache_does_not_fit(blocks, error);
      log::warn("{} KV blocks do not fit ({}); trying {}", blocks, error.what(), fewer);
      blocks = fewer;
    }
  }
  writer_->set_num_blocks(kv_cache_->num_blocks());
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
  buffers_->begin_turn();
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
std::vector<BatchDescriptor> ProgramRunner::uncaptured_sizes() const {
  const auto planned_rows = device_.kernels().planned_rows;
  std::vector<BatchDescriptor> sizes;
  if (planned_rows == nullptr) return sizes;
  int32_t rows = 0;
  for (const auto mode : {ipc::RuntimeMode::kPiecewise, ipc::RuntimeMode::kFull}) {
    for (const BatchDescriptor& key : hosted_->dispatcher->keys(mode)) {
      if (!key.uniform) rows = std::max(rows, key.num_tokens);
    }
  }
  const ipc::WorkerConfig& config = options_.config;
  while (rows < config.max_num_batched_tokens) {
    rows = std::min(planned_rows(rows + 1), config.max_num_batched_tokens);
    sizes.push_back({rows, std::min(rows, config.max_num_seqs)});
  }
  return sizes;
}

Status ProgramRunner::capture() {
  REFRAIN_CHECK(kv_cache_ != nullptr, "capture before init_cache");
  CaptureHooks hooks;
  hooks.prepare = [this](const BatchDescriptor& key) { prepare_capture_batch(key); };
  if (communicator_->size() > 1) {
    hooks.any_rank_failed = [this](bool failed) { return any_rank_failed(failed); };
  }
  hooks.progress = [this](const CaptureProgress& progress) {
    report(ipc::StartPhase::kCapture, progress.done, progress.total, progress.detail);
  };
  const CaptureJob job{
      [this](const BatchDescriptor& key) -> const Lowering& { return hosted_->lowering(key); },
      device_.warmup_runs(), options_.config.debug_cudagraph, uncaptured_sizes()};
  captured_ = capture_all(job, hooks, *pool_, *hosted_->dispatcher, hosted_->executables);
  stream_->synchronize();
  return {};
}

ipc::Ready ProgramRunner::make_ready() const {
  const CudagraphConfig& config = hosted_->dispatcher->config();
  ipc::Ready ready;
  const bool dropped = pool_->counters().num_captures_dropped > 0;
  ready.cudagraph_mode = to_string(dropped ? hosted_->dispatcher->mode_in_force() : config.mode);
  ready.uniform_query_len = config.uniform_query_len;
  ready.capture_sizes = config.capture_sizes;
  ready.manifest = captured_.manifest;
  ready.arena_bytes = static_cast<int64_t>(pool_->arena_bytes());
  ready.warnings = config.warnings;
  ready.warnings.insert(ready.warnings.end(), captured_.warnings.begin(), captured_.warnings.end());
  for (const std::string& kind : stream_->slow_launches()) {
    ready.warnings.push_back(fmt::format("{}: a slow kernel, no better one takes it", kind));
  }
  ready.num_kv_blocks = kv_cache_->num_blocks();
  const MemoryAccount memory = device_.memory();
  for (int tag = 0; tag < kNumMemoryTags; ++tag) {
    ready.memory_tags.emplace_back(to_string(static_cast<MemoryTag>(tag)));
    ready.memory_bytes.push_back(static_cast<int64_t>(memory.by_tag[tag]));
  }
  return ready;
}

}  // namespace refrain::worker
