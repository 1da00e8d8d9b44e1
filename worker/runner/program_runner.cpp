#include "worker/runner/program_runner.h"

#include <algorithm>

#include "runtime/base/processors.h"
#include "worker/runner/value_memory.h"
#include "worker/weights/weights.h"

namespace refrain::worker {

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(RunnerOptions options, Device& device,
                                                         ProgressFn progress) {
  return ProgramRunner::create(std::move(options), device, std::move(progress));
}

ProgramRunner::ProgramRunner(RunnerOptions options, Device& device, ProgressFn progress)
    : options_(std::move(options)), device_(device), progress_(std::move(progress)) {}

namespace {

// Threads beside the device's own, for masks and adapters: half of this rank's share of the cores,
// eight at most.
int num_helpers(int32_t ranks) { return std::clamp(usable_processors() / (2 * ranks), 1, 8); }

}  // namespace

Result<HostedPrograms> ProgramRunner::plan() const {
  const RunnerOptions& given = options_;
  std::unique_ptr<HostedProgram> draft;
  if (given.config.draft_model) {
    REFRAIN_ASSIGN_OR_RETURN(
        draft, plan_draft(given.draft, given.model, given.config, given.rank, device_));
  }
  REFRAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<HostedProgram> model,
      plan_program(given.model, given.config, given.rank, device_, given.build,
                   draft == nullptr ? std::vector<StateGroup>() : draft->program.states,
                   given.config.draft_head == ipc::DraftHead::kNone
                       ? std::vector<int64_t>()
                       : hidden_states_of(given.config.draft_head, given.draft, given.model)));
  HostedPrograms programs;
  programs.push_back(std::move(model));
  if (draft != nullptr) programs.push_back(std::move(draft));
  return programs;
}

Result<std::vector<HostedPrograms>> ProgramRunner::plan_contexts() const {
  REFRAIN_ASSIGN_OR_RETURN(HostedPrograms planned, plan());
  std::vector<HostedPrograms> of_context(static_cast<size_t>(options_.contexts));
  for (size_t i = 1; i < of_context.size(); ++i)
    for (const auto& program : planned) of_context[i].push_back(for_another_context(*program));
  of_context[0] = std::move(planned);
  return of_context;
}

Result<std::unique_ptr<ProgramRunner>> ProgramRunner::create(RunnerOptions options, Device& device,
                                                             ProgressFn progress) {
  std::unique_ptr<ProgramRunner> runner(
      new ProgramRunner(std::move(options), device, std::move(progress)));
  if (runner->options_.config.batch_invariant) device.make_batch_invariant();
  REFRAIN_ASSIGN_OR_RETURN(std::vector<HostedPrograms> of_context, runner->plan_contexts());
  for (HostedPrograms& programs : of_context) {
    const DeviceShare share{static_cast<int>(runner->contexts_.size()), runner->options_.contexts};
    REFRAIN_ASSIGN_OR_RETURN(
        auto context, ExecutionContext::open(runner->options_, device, share, std::move(programs)));
    runner->contexts_.push_back(std::move(context));
  }
  runner->caches_ =
      std::make_unique<ProgramCaches>(runner->options_.config, device, runner->context().programs);
  return runner;
}

Result<Weights> ProgramRunner::load_checkpoint(const HostedProgram& of, const ModelConfig& model,
                                               const std::filesystem::path& directory) {
  const LoadProgress progress = [this](size_t done, size_t total) {
    if (progress_)
      progress_({ipc::StartPhase::kLoadWeights, static_cast<int64_t>(done),
                 static_cast<int64_t>(total), "weights"});
  };
  const ipc::WorkerConfig& config = options_.config;
  Stream& stream = *context().stream;
  if (config.load_dummy)
    return make_dummy_weights(of.program, model, config.seed, device_, stream, progress);
  const LoadChecks checks{.finite = options_.debug.check_weights};
  return load_weights(of.program, model, directory, device_, stream, progress, checks);
}

Status ProgramRunner::load_weights_of_all() {
  REFRAIN_ASSIGN_OR_RETURN(*hosted().weights,
                           load_checkpoint(hosted(), options_.model, options_.model_directory));
  const HostedProgram* draft = context().draft();
  if (draft == nullptr) return {};
  REFRAIN_ASSIGN_OR_RETURN(*draft->weights,
                           load_checkpoint(*draft, options_.draft, options_.draft_directory));
  share_weights(draft->program, *draft->weights, hosted().program, *hosted().weights);
  return {};
}

Result<ipc::Loaded> ProgramRunner::load() {
  const TimePoint start = steady_clock().now();
  const ipc::WorkerConfig& config = options_.config;
  REFRAIN_RETURN_IF_ERROR(load_weights_of_all());
  slots_.grammars = std::make_unique<GrammarMasks>(
      options_.model_directory, options_.model.vocab_size, options_.model.eos_token_ids,
      config.max_num_seqs, num_helpers(config.tensor_parallel_size));
  REFRAIN_RETURN_IF_ERROR(prepare_steps());
  ipc::Loaded loaded;
  REFRAIN_ASSIGN_OR_RETURN(loaded.groups, caches_->fitting());
  for (const auto& program : context().programs)
    loaded.weight_bytes += static_cast<int64_t>(program->weights->bytes);
  loaded.seconds = seconds_between(start, steady_clock().now());
  loaded.steps_together = hosted().program.replicas > 1;
  return loaded;
}

// What the slots have and what runs steps: it follows from the Programs.
Status ProgramRunner::prepare_steps() {
  Stream& stream = *context().stream;
  slots_.states = std::make_unique<SlotStates>(device_, stream, hosted().program);
  slots_.table = std::make_unique<SlotTable>(options_.config.max_num_seqs);
  if (hosted().lora_program) {
    slots_.adapters =
        std::make_unique<AdapterPlaces>(device_, stream, std::move(*hosted().lora_program),
                                        hosted().program.values.size(), hosted().weights->folded);
    reader_ = std::make_unique<AdapterReader>(
        [this](const ipc::LoadAdapter& message) { return read(message); });
  }
  for (const auto& context : contexts_) {
    context->allocate(device_, *slots_.states, options_.config.block_size);
    REFRAIN_ASSIGN_OR_RETURN(auto runner, StepRunner::create(options_, device_, *context, slots_));
    runners_.push_back(std::move(runner));
  }
  return {};
}

// With the addresses of the caches.
Status ProgramRunner::bind() {
  for (size_t i = 1; i < contexts_.size(); ++i)
    for (size_t p = 0; p < contexts_[i]->programs.size(); ++p)
      contexts_[i]->programs[p]->cache = context().programs[p]->cache;
  context().stream->synchronize();
  for (const auto& runner : runners_) REFRAIN_RETURN_IF_ERROR(runner->bind());
  return {};
}

Status ProgramRunner::change_role(const ipc::WorkerConfig& config) {
  REFRAIN_CHECK(caches_->made() && in_flight() == 0, "a role changes between steps");
  options_.config = config;
  REFRAIN_ASSIGN_OR_RETURN(std::vector<HostedPrograms> of_context, plan_contexts());
  runners_.clear();
  slots_.adapters.reset();
  slots_.states.reset();
  captured_ = {};
  for (size_t i = 0; i < contexts_.size(); ++i)
    contexts_[i]->change_programs(device_, std::move(of_context[i]));
  REFRAIN_RETURN_IF_ERROR(prepare_steps());
  return bind();
}

// A cache of a size that was asked for has its memory before the captures; one that takes what is
// left has it after them (CG-25).
Status ProgramRunner::init_cache(const std::vector<int64_t>& num_blocks) {
  REFRAIN_CHECK(!runners_.empty(), "init_cache before load");
  REFRAIN_CHECK(!caches_->made(), "the KV cache is made once");
  try {
    caches_->make(*context().stream, num_blocks);
    REFRAIN_RETURN_IF_ERROR(bind());
    if (has_fixed_size(options_.config)) caches_->back(num_blocks);
  } catch (const OutOfMemory& error) {
    return ProgramCaches::does_not_fit(num_blocks, error);
  }
  return {};
}

Status ProgramRunner::capture() {
  REFRAIN_CHECK(caches_->made(), "capture before init_cache");
  for (const auto& runner : runners_) {
    CaptureResult result = runner->capture(progress_);
    std::ranges::move(result.manifest, std::back_inserter(captured_.manifest));
    std::ranges::move(result.warnings, std::back_inserter(captured_.warnings));
  }
  return {};
}

Result<ipc::Ready> ProgramRunner::back_cache() {
  REFRAIN_CHECK(caches_->made(), "back_cache before init_cache");
  REFRAIN_RETURN_IF_ERROR(caches_->back_what_is_left());
  for (const auto& runner : runners_) runner->set_num_blocks(caches_->num_blocks());
  return make_ready();
}

ipc::Ready ProgramRunner::make_ready() const {
  const CudagraphDispatcher& dispatcher = *hosted().dispatcher;
  const CudagraphConfig& config = dispatcher.config();
  ipc::Ready ready;
  const bool dropped = pool().counters().num_captures_dropped > 0;
  ready.cudagraph_mode = to_string(dropped ? dispatcher.mode_in_force() : config.mode);
  ready.uniform_query_len = config.uniform_query_len();
  ready.capture_sizes = config.capture_sizes;
  ready.manifest = captured_.manifest;
  ready.warnings = config.warnings;
  ready.warnings.insert(ready.warnings.end(), captured_.warnings.begin(), captured_.warnings.end());
  for (const auto& context : contexts_) {
    ready.arena_bytes += static_cast<int64_t>(context->pool->arena_bytes());
    for (const std::string& kind : context->stream->slow_launches())
      ready.warnings.push_back(fmt::format("{}: a slow kernel, no better one takes it", kind));
  }
  ready.num_blocks = caches_->num_blocks();
  ready.row_tile = device_.kernels().row_tile;
  const MemoryAccount memory = device_.memory();
  for (int tag = 0; tag < kNumMemoryTags; ++tag) {
    ready.memory_tags.emplace_back(to_string(static_cast<MemoryTag>(tag)));
    ready.memory_bytes.push_back(static_cast<int64_t>(memory.by_tag[tag]));
  }
  return ready;
}

Status ProgramRunner::read_adapter(const ipc::LoadAdapter& message,
                                   const std::function<void()>& done) {
  if (reader_ == nullptr)
    return fail(ErrorCode::kInvalidArgument, "LoRA adapters are off (--enable-lora)");
  reader_->post(message, done);
  return {};
}

// The reader's thread.
Result<AdapterPlaces::Adapter> ProgramRunner::read(const ipc::LoadAdapter& message) const {
  REFRAIN_ASSIGN_OR_RETURN(const std::filesystem::path directory,
                           options_.adapters.find(message.name, message.digest));
  REFRAIN_ASSIGN_OR_RETURN(const PeftAdapter adapter, PeftAdapter::open(directory));
  const auto open_model = [this]() -> Result<std::unique_ptr<WeightSource>> {
    if (options_.config.load_dummy) return dummy_weights(options_.config.seed);
    return open_checkpoint(options_.model_directory);
  };
  return slots_.adapters->read(adapter, open_model,
                               num_helpers(options_.config.tensor_parallel_size));
}

Status ProgramRunner::add_adapter(AdapterId id, const std::function<void()>& alive) {
  REFRAIN_ASSIGN_OR_RETURN(AdapterPlaces::Adapter adapter, reader_->take(id, alive));
  slots_.adapters->add(id, std::move(adapter));
  return {};
}

void ProgramRunner::unload_adapter(AdapterId id) {
  if (slots_.adapters != nullptr) slots_.adapters->unload(id, *context().stream);
}

void ProgramRunner::forget_adapters() {
  if (slots_.adapters == nullptr) return;
  reader_->forget();
  slots_.adapters->forget_all(*context().stream);
}

KvMemory ProgramRunner::kv_memory() const {
  KvMemory memory;
  const HostedProgram* draft = context().draft();
  const size_t of_draft = draft == nullptr ? 0 : draft->program.states.size();
  const size_t own = hosted().program.states.size() - of_draft;
  const int64_t block_size = options_.config.block_size;
  add_states(hosted().program, *hosted().cache, block_size, 0, own, memory);
  if (of_draft > 0) add_states(draft->program, *draft->cache, block_size, 0, of_draft, memory);
  const ValueId flags = layer_flags_of(hosted().program);
  if (flags != kNoValue)
    memory.flags =
        static_cast<std::byte*>(context().buffers->addresses()[static_cast<size_t>(flags)].front());
  return memory;
}

void ProgramRunner::forget_steps() {
  const KvMemory memory = kv_memory();
  if (memory.flags == nullptr) return;
  const Filler zeros(device_, 0);  // until the copies have been made
  zeros.fill(*context().stream, memory.flags, memory.flag_bytes());
  context().stream->synchronize();
}

}  // namespace refrain::worker
