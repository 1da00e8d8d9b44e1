#include "worker/runner/step_runner.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "worker/runner/context_captures.h"
#include "worker/runner/hidden_states.h"
#include "worker/runner/logits.h"

namespace refrain::worker {

StepRunner::StepRunner(const RunnerOptions& options, Device& device, ExecutionContext& context,
                       SlotsOfWorker& slots)
    : options_(options),
      device_(device),
      context_(context),
      slots_(slots),
      writer_(*context.buffers, *slots.states, *slots.table, *slots.grammars,
              context.model().program, options.config.max_model_len,
              options.keep_logits || !options.debug.dump_values.empty()),
      results_(context.model().program, *context.buffers, options.rank),
      readers_(hidden_readers(context.model().program,
                              context.draft() == nullptr ? nullptr : &context.draft()->program)),
      planner_(device, context.model(), context.buffers->addresses()),
      forward_(context.pool->counters(), options.config.debug_cudagraph) {}

Result<std::unique_ptr<StepRunner>> StepRunner::create(const RunnerOptions& options, Device& device,
                                                       ExecutionContext& context,
                                                       SlotsOfWorker& slots) {
  std::unique_ptr<StepRunner> runner(new StepRunner(options, device, context, slots));
  const ipc::WorkerConfig& config = options.config;
  if (slots.adapters != nullptr) runner->writer_.set_num_places(slots.adapters->num_places());
  REFRAIN_ASSIGN_OR_RETURN(runner->split_,
                           SplitRun::create(device, context.model(), config.split_prefill));
  if (context.model().scoring != nullptr) {
    runner->scorer_ = std::make_unique<PromptScorer>(device, *context.stream,
                                                     *context.model().scoring, config.max_num_seqs);
  }
  if (options.poison_padding) runner->poison_ = std::make_unique<Filler>(device, 0xff);
  if (config.debug_cudagraph)
    runner->counter_check_ = std::make_unique<CounterCheck>(device, context.stream->counters());
  if (options.debug.time_steps) runner->idle_times_ = std::make_unique<IdleTimes>(options.rank);
  if (!options.debug.dump_values.empty()) {
    runner->dump_ = std::make_unique<ValueDump>(options.debug.dump_values, options.rank,
                                                options.debug.dump_steps, device);
  }
  const auto rows = static_cast<size_t>(config.max_num_seqs);
  for (StepInFlight& flight : runner->flights_) {
    flight.rows.reserve(rows);
    flight.slots.reserve(rows);
  }
  return runner;
}

StepRunner::~StepRunner() {
  if (context_.share.whole() || num_in_flight_ == 0) return;
  try {
    stream().synchronize();
  } catch (const std::exception& error) {  // the device is broken, and was waited for all the same
    log::error("steps in flight: {}", error.what());
  }
}

Status StepRunner::bind() {
  if (options_.config.audit) {
    audit_ = std::make_unique<StepAudit>(device_, model(), *model().cache,
                                         context_.buffers->sizes(), *slots_.states);
  }
  REFRAIN_RETURN_IF_ERROR(context_.bind(slots_.adapters.get()));
  if (scorer_ == nullptr) return {};
  return scorer_->bind(*model().weights, context_.pool->arena(), model().cache->addresses(),
                       context_.buffers->addresses());
}

CaptureResult StepRunner::capture(const ModelRunner::ProgressFn& progress) {
  CaptureResult result = ContextCaptures(options_, device_, context_, planner_, progress).run();
  if (scorer_ != nullptr) scorer_->warm_up();
  stream().synchronize();
  return result;
}

void StepRunner::submit(const ipc::Step& step) {
  REFRAIN_CHECK(model().cache != nullptr, "submit before capture");
  REFRAIN_CHECK(num_in_flight_ < kMaxInFlight, "step {}: {} steps are in flight already", step.step,
                num_in_flight_);
  const int index = (first_flight_ + num_in_flight_) % kMaxInFlight;
  StepInFlight& flight = flights_[static_cast<size_t>(index)];
  REFRAIN_CHECK(num_in_flight_ == 0 || !needs_tokens_before(step),
                "step {}: tokens that its grammars need are in flight", step.step);
  flight.start = steady_clock().now();
  flight.step = step.step;
  REFRAIN_CHECK(!step.audit || audit_ != nullptr, "step {} asks for an audit", step.step);
  flight.audit = {};
  flight.prompt = {};
  place_adapters(step);
  writer_.write(step, stream());
  if (scorer_ != nullptr)
    for (const ipc::SlotSetup& setup : step.setups) scorer_->set_up(setup);
  flight.masks = writer_.grammar_rows(step);
  BatchShape shape = batch_shape(step, model().dispatcher->config().uniform_query_lens, readers_);
  flight.ends = step.runs.empty() || step.runs.front().ends();
  // A whole graph has no piece to end at.
  if (!step.runs.empty() && step.runs.front().parts != 1)
    shape.allowed_modes &= static_cast<uint8_t>(~(1U << int(RuntimeMode::kFull)));
  flight.dispatch = dispatch(step, shape);
  flight.key = model().executed_key(flight.dispatch);
  flight.num_tokens = shape.num_tokens;
  flight.num_reqs = shape.num_reqs;
  StepResults::note_rows(step, *slots_.table, *slots_.grammars, flight);
  if (shape.num_tokens == 0 && !step.together.empty()) {
    run_idle(flight);
  } else if (shape.num_tokens > 0) {
    if (poison_) poison();
    if (step.audit) audit_->before(flight.slots, stream());
    flight.turn = context_.buffers->begin_turn();
    const ipc::Rows& rows = rows_of(step);
    planner_.plan({rows.slot, rows.num_tokens, rows.computed, step.shared_prefix, step.shared_rows},
                  flight.turn, stream());
    if (num_in_flight_ == 0) slots_.grammars->post({}, flight.turn, std::move(flight.masks));
    run_ops(step, shape, flight);
    if (flight.ends) {
      const bool whole = step.runs.front().parts == 1;
      writer_.keep_checkpoints(whole ? step : split_->first_step(), stream());
    }
    if (counter_check_) counter_check_->copy(stream(), index);
    if (step.audit) audit(shape, flight);
    if (step.runs.size() > 1) run_draft(shape);
    last_logits_ = shape.num_samples;
    last_padded_ = logit_rows(model().program, flight.key);
  } else {
    REFRAIN_CHECK(step.setups.empty() && ipc::num_block_updates(step) == 0,
                  "step {} brings slots or blocks but no tokens", step.step);
  }
  flight.decode = !step.runs.empty() && step.runs.front().mode == ipc::ForwardMode::kDecode;
  flight.done = idle_times_ ? stream().record_time() : stream().record();
  ++num_in_flight_;
}

// With replicas it is what all of them run.
Dispatch StepRunner::dispatch(const ipc::Step& step, const BatchShape& shape) const {
  const bool together = model().program.replicas > 1;
  REFRAIN_CHECK(together != step.together.empty(),
                "step {} names the sizes of {} replicas, the model steps with {}", step.step,
                step.together.size(), model().program.replicas);
  if (!together) return model().dispatcher->dispatch(shape);
  const auto own = static_cast<size_t>(options_.replica);
  REFRAIN_CHECK(step.together.size() == static_cast<size_t>(model().program.replicas) &&
                    step.together[own] == ipc::size_of(step) && !step.audit &&
                    step.runs.size() == 1 && step.runs.front().parts == 1 &&
                    !PromptScorer::scores(step),
                "step {} is none that replicas run together", step.step);
  return model().dispatcher->dispatch_together(step.together);
}

// The others' step, without a live row (CG-17).
void StepRunner::run_idle(StepInFlight& flight) {
  flight.turn = context_.buffers->begin_turn();
  if (poison_) poison();
  planner_.plan({}, flight.turn, stream());
  BatchShape padded;  // eager pieces have no fewer rows either
  padded.num_tokens = flight.key.num_tokens;
  padded.num_reqs = flight.key.num_reqs;
  padded.num_samples = flight.key.num_reqs;
  padded.has_lora = flight.key.has_lora;
  flight.ran_graph = forward_.run(model(), flight.dispatch, flight.key, padded);
  last_lowering_ = &model().lowering(flight.key);
}

void StepRunner::place_adapters(const ipc::Step& step) {
  REFRAIN_CHECK(slots_.adapters != nullptr || (step.placements.empty() && !step.has_lora),
                "step {} has LoRA adapters, this group none", step.step);
  for (const ipc::AdapterPlacement& placement : step.placements)
    slots_.adapters->place(placement.place, placement.adapter, stream());
}

bool StepRunner::needs_tokens_before(const ipc::Step& step) const {
  const bool runs_at_once = device_.runs_at_once() && context_.share.whole();
  const bool ends_in_submit = step.audit || (dump_ && dump_->more()) || runs_at_once;
  if (!ends_in_submit) return false;
  if (std::ranges::any_of(step.setups, &ipc::SlotSetup::follows_output)) return true;
  return std::ranges::any_of(rows_of(step).slot,
                             [this](SlotId slot) { return slots_.grammars->constrains(slot); });
}

void StepRunner::run_ops(const ipc::Step& step, const BatchShape& batch, StepInFlight& flight) {
  if (idle_times_) flight.begun = stream().record_time();
  if (step.runs.front().parts != 1) {
    run_part(step, batch, flight);
  } else if (PromptScorer::scores(step)) {
    REFRAIN_CHECK(scorer_ != nullptr && !step.audit && flight.dispatch.mode == RuntimeMode::kNone,
                  "step {} scores prompts: it runs without graphs and without an audit", step.step);
    last_lowering_ = model().scoring.get();
    flight.prompt = scorer_->run(step, batch);
    ++context_.pool->counters().num_eager_runs;
    flight.ran_graph = false;
  } else if (dump_ && dump_->more()) {
    last_lowering_ = &model().lowering(flight.key);
    dump_->run(last_lowering_->context, flight.key, step, flight.num_tokens, flight.turn);
    ++context_.pool->counters().num_eager_runs;
    flight.ran_graph = false;
  } else {
    flight.ran_graph = forward_.run(model(), flight.dispatch, flight.key, batch);
    last_lowering_ = &model().lowering(flight.key);
  }
}

// CG-39.
void StepRunner::run_part(const ipc::Step& step, const BatchShape& batch, StepInFlight& flight) {
  REFRAIN_CHECK(
      split_ != nullptr && step.runs.size() == 1 && !step.audit,
      "step {}: a part of a run takes no draft model, no audit, and workers that were told "
      "of it (split_prefill)",
      step.step);
  for (const SlotId slot : flight.slots)  // each part would count the output tokens it is fed
    REFRAIN_CHECK(!slots_.table->at(slot).uses_history,
                  "step {}: slot {} has penalties, its run no parts", step.step, slot);
  const Dispatch& dispatch = flight.dispatch;
  flight.ran_graph = dispatch.mode != RuntimeMode::kNone;
  last_lowering_ = &model().lowering(flight.key);
  split_->run(step, *last_lowering_, flight.key,
              flight.ran_graph ? &model().executables.at(dispatch.mode, dispatch.id) : nullptr,
              batch, stream(), context_.pool->counters());
}

// Behind the language model's ops, over the same rows: its drafts are for the next step. It has no
// LoRA adapters, whose requests the language model verifies with theirs, and reads no prefix once.
void StepRunner::run_draft(const BatchShape& batch) {
  REFRAIN_CHECK(context_.draft() != nullptr, "a run of a draft model, which this worker has not");
  BatchShape own = batch;
  own.has_lora = own.cascade = false;
  own.hidden = ipc::CaptureHiddenMode::kNull;
  const HostedProgram& draft = *context_.draft();
  const Dispatch dispatch = draft.dispatcher->dispatch(own);
  forward_.run(draft, dispatch, draft.executed_key(dispatch), own);
}

void StepRunner::poison() {
  poison_->fill(stream(), context_.pool->arena(), context_.pool->arena_bytes());
  for (const auto& program : context_.programs) {
    for (const PagedLayer& layer : program->cache->layers()) {
      poison_->fill(stream(), program->cache->address(layer),
                    static_cast<size_t>(layer.block_bytes(options_.config.block_size)));
    }
  }
}

std::optional<ipc::StepResult> StepRunner::wait_unless(const StopFn& stop) {
  REFRAIN_CHECK(num_in_flight_ > 0, "no step is in flight");
  const int index = first_flight_;
  StepInFlight& flight = flights_[static_cast<size_t>(index)];
  if (!flight.done->wait(stop)) return std::nullopt;
  if (counter_check_ && flight.num_tokens > 0) counter_check_->check(flight.step, index);
  if (idle_times_) {
    idle_times_->add(flight.decode, std::move(flight.begun), std::move(flight.done));
  }
  flight.done.reset();
  first_flight_ = (first_flight_ + 1) % kMaxInFlight;
  --num_in_flight_;
  ipc::StepResult result = results_.make(flight);
  follow_grammars(flight, result);
  return result;
}

// Every rank: each makes its masks itself, of the same tokens. Those of the next step, which runs
// already, follow from them.
void StepRunner::follow_grammars(const StepInFlight& flight, const ipc::StepResult& result) {
  std::vector<GrammarMasks::Taken> taken;
  for (size_t row = 0; row < flight.rows.size(); ++row) {
    const auto& follower = flight.rows[row].follower;
    if (follower == nullptr) continue;
    const auto tokens = result.tokens.begin();
    taken.push_back(
        {follower, {tokens + result.token_offsets[row], tokens + result.token_offsets[row + 1]}});
  }
  StepInFlight& next = flights_[static_cast<size_t>(first_flight_)];
  const bool runs = num_in_flight_ > 0;
  slots_.grammars->post(std::move(taken), runs ? next.turn : 0,
                        runs ? std::move(next.masks) : std::vector<GrammarMasks::Row>());
}

std::vector<float> StepRunner::read_logits() {
  REFRAIN_CHECK(num_in_flight_ == 0, "logits are read between steps");
  const Lowering& lowering = last_lowering_ == nullptr ? model() : *last_lowering_;
  return worker::read_logits(lowering, last_logits_, last_padded_, device_, stream());
}

// What the host gives bit by bit the same, whatever the padding, must be the same.
void StepRunner::audit(const BatchShape& batch, StepInFlight& flight) {
  stream().synchronize();
  std::vector<StepAudit::Row> rows;
  for (const StepInFlight::Row& row : flight.rows) {
    const SlotRequest& request = slots_.table->at(row.slot);
    // Whose tokens are counted takes one a step.
    for (int32_t i = 0; i < row.num_logits; ++i)
      rows.push_back({row.slot, row.samples, row.samples && request.plainly_greedy,
                      row.samples && i == 0 && request.uses_history});
  }
  const RuntimeMode mode = flight.ran_graph ? flight.dispatch.mode : RuntimeMode::kNone;
  flight.audit = audit_->run({*last_lowering_, flight.key, mode, batch, std::move(rows),
                              flight.slots, context_.buffers->outputs(flight.turn).tokens},
                             model().plain(batch.has_lora), stream(), device_.runs_at_once());
}

}  // namespace refrain::worker
