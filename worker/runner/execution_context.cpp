#include "worker/runner/execution_context.h"

#include <fmt/format.h>

namespace refrain::worker {
namespace {

Status hold_to_nccl(Communicator& group, const std::string& device) {
  if (group.size() == 1) return {};
  if (group.use_nccl_alone()) return {};
  return fail_field("disable_custom_all_reduce",
                    "disable_custom_all_reduce: {} has no NCCL to sum by", device);
}

// --batch-invariant: sums of all rows of a step, too.
Status hold_to_rank_order(const Communicator& group, const RunnerOptions& options,
                          const std::string& device) {
  const ipc::WorkerConfig& config = options.config;
  const size_t bytes =
      static_cast<size_t>(config.max_num_batched_tokens * options.model.hidden_size) *
      (config.dtype == "float32" ? 4 : 2);
  if (!config.batch_invariant || group.sums_in_rank_order(bytes)) return {};
  return fail_field(
      "batch_invariant",
      "batch_invariant: sums of {} bytes over the ranks are not made in one order on {}; "
      "lower max_num_batched_tokens, without disable_custom_all_reduce",
      bytes, device);
}

// A group of its own for each context.
std::string token_of(const RunnerOptions& options, const DeviceShare& share) {
  if (share.index == 0) return options.group_token;
  return fmt::format("{}.{}", options.group_token, share.index);
}

}  // namespace

Result<std::unique_ptr<ExecutionContext>> ExecutionContext::open(const RunnerOptions& options,
                                                                 Device& device,
                                                                 const DeviceShare& share,
                                                                 HostedPrograms programs) {
  auto context = std::make_unique<ExecutionContext>();
  context->share = share;
  context->programs = std::move(programs);
  const ipc::WorkerConfig& config = options.config;
  REFRAIN_ASSIGN_OR_RETURN(
      context->communicator,
      device.create_communicator({token_of(options, share), options.rank,
                                  config.tensor_parallel_size, config.collective_timeout_ms,
                                  options.meet, options.listen_on, options.stop_joining}));
  if (const int count = context->model().program.replicas; count > 1) {
    GroupOptions replicas{fmt::format("{}.{}", options.replicas_token, options.rank),
                          options.replica, count, config.collective_timeout_ms};
    replicas.stop = options.stop_joining;
    REFRAIN_ASSIGN_OR_RETURN(context->replicas, device.create_communicator(replicas));
  }
  if (config.disable_custom_all_reduce)
    REFRAIN_RETURN_IF_ERROR(hold_to_nccl(*context->communicator, device.name()));
  REFRAIN_RETURN_IF_ERROR(hold_to_rank_order(*context->communicator, options, device.name()));
  PeerSums sums;  // every form for few rows has the same
  for (const Lowering* lowering : context->model().lowerings()) {
    if (sums.places == 0) sums = peer_sums(lowering->program);
  }
  if (sums.places > 0) context->communicator->reserve_peer_sums(sums.places, sums.cols);
  context->stream = device.create_stream(share);
  context->pool = std::make_unique<GraphPool>(device);
  context->ranges = options.debug.nvtx ? &device : nullptr;
  context->set_ops();
  return context;
}

void ExecutionContext::set_ops() {
  for (const auto& program : programs) {
    for (Lowering* lowering : program->all_lowerings()) {
      OpContext& ops = lowering->context;
      ops.stream = stream.get();
      ops.stream_ref = stream->ref();
      ops.communicator = communicator.get();
      ops.replicas = replicas.get();
      ops.ranges = ranges;
    }
  }
}

void ExecutionContext::change_programs(Device& device, HostedPrograms next) {
  stream->synchronize();
  REFRAIN_CHECK(next.size() == programs.size(), "{} Programs instead of {}", next.size(),
                programs.size());
  for (size_t i = 0; i < next.size(); ++i) take_over(*next[i], *programs[i]);
  programs.clear();  // executables go before what they use
  pool = std::make_unique<GraphPool>(device);
  draft_values.reset();
  buffers.reset();
  programs = std::move(next);
  set_ops();
}

void ExecutionContext::allocate(Device& device, const SlotStates& slots, int32_t block_size) {
  for (const auto& program : programs)  // they take turns in one arena
    for (const Lowering* lowering : program->all_lowerings()) pool->reserve(lowering->plan.bytes);
  pool->commit();
  buffers = std::make_unique<InputBuffers>(device, *stream, model().program, block_size, slots);
  if (draft() != nullptr) {
    draft_values = std::make_unique<ProgramValues>(device, *stream, draft()->program,
                                                   model().program, buffers->addresses());
  }
  if (communicator->size() == 1 && replicas == nullptr) return;
  agreement = device.allocate(sizeof(float), MemoryTag::kOther);
  agreement_pinned = device.allocate_pinned(sizeof(float));
}

Status ExecutionContext::bind(const AdapterPlaces* adapters) {
  std::vector<Addresses> with_places = buffers->addresses();
  if (adapters != nullptr) {
    const std::vector<Addresses>& places = adapters->addresses();
    with_places.insert(with_places.end(), places.begin() + std::ssize(with_places), places.end());
  }
  for (const auto& program : programs) {
    const bool first = program == programs.front();
    for (Lowering* lowering : program->lowerings()) {
      const std::vector<Addresses>& of_first = lowering->lora ? with_places : buffers->addresses();
      REFRAIN_RETURN_IF_ERROR(bind_values(lowering->context, lowering->plan, pool->arena(),
                                          program->cache->addresses(),
                                          first ? of_first : draft_values->addresses()));
    }
  }
  return {};
}

bool ExecutionContext::any_rank_failed(bool failed_here) {
  auto* failed = static_cast<float*>(agreement_pinned->data());
  *failed = failed_here ? 1.0f : 0.0f;
  stream->copy(agreement->data(), failed, sizeof(float));
  for (Communicator* each : {communicator.get(), replicas.get()})
    if (each != nullptr)
      each->all_reduce(*stream, {agreement->data(), DType::kFloat32, 1}, 1, {1, nullptr});
  stream->copy(failed, agreement->data(), sizeof(float));
  stream->synchronize();
  return *failed > 0;
}

}  // namespace refrain::worker
