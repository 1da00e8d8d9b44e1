// Steps of the ProgramRunner: check, fill, dispatch, pad, run, read the outputs.

#include "worker/runner/program_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/runner/logits.h"

namespace refrain::worker {

using kernels::kMaxLogprobs;

void ProgramRunner::submit(const ipc::Step& step) {
  REFRAIN_CHECK(hosted().cache != nullptr, "submit before capture");
  REFRAIN_CHECK(num_in_flight_ < kMaxInFlight, "step {}: {} steps are in flight already", step.step,
                num_in_flight_);
  const int index = (first_flight_ + num_in_flight_) % kMaxInFlight;
  InFlight& flight = flights_[static_cast<size_t>(index)];
  REFRAIN_CHECK(num_in_flight_ == 0 || !needs_tokens_before(step),
                "step {}: tokens that its grammars need are in flight", step.step);
  flight.start = steady_clock().now();
  flight.step = step.step;
  REFRAIN_CHECK(!step.audit || audit_ != nullptr, "step {} asks for an audit", step.step);
  flight.audit = {};
  flight.prompt = {};
  place_adapters(step);
  writer_->write(step, *stream_);
  if (scorer_ != nullptr)
    for (const ipc::SlotSetup& setup : step.setups) scorer_->set_up(setup);
  flight.masks = writer_->grammar_rows(step);
  BatchShape shape = batch_shape(step, hosted().dispatcher->config().uniform_query_lens);
  flight.ends = step.runs.empty() || step.runs.front().ends();
  // A whole graph has no piece to end at.
  if (!step.runs.empty() && step.runs.front().parts != 1)
    shape.allowed_modes &= static_cast<uint8_t>(~(1U << int(RuntimeMode::kFull)));
  flight.dispatch = hosted().dispatcher->dispatch(shape);
  flight.num_tokens = shape.num_tokens;
  flight.num_reqs = shape.num_reqs;
  note_row_outputs(step, flight);
  if (shape.num_tokens > 0) {
    if (poison_) poison();
    if (step.audit) audit_->before(flight.slots, *stream_);
    flight.turn = buffers_->begin_turn();
    const ipc::Rows& rows = rows_of(step);
    planner_->plan({rows.slot, rows.num_tokens, rows.computed, step.shared_prefix}, flight.turn,
                   *stream_);
    if (num_in_flight_ == 0) grammars_->post({}, flight.turn, std::move(flight.masks));
    run_ops(step, shape, flight);
    if (flight.ends) {
      const bool whole = step.runs.front().parts == 1;
      writer_->keep_checkpoints(whole ? step : split_->first_step(), *stream_);
    }
    if (counter_check_) counter_check_->copy(*stream_, index);
    if (step.audit) audit(shape, flight);
    if (step.runs.size() > 1) run_draft(shape);
    last_logits_ = shape.num_samples;
    last_padded_ = logit_rows(hosted().program, executed_key(hosted(), flight.dispatch));
  } else {
    REFRAIN_CHECK(step.setups.empty() && ipc::num_block_updates(step) == 0,
                  "step {} brings slots or blocks but no tokens", step.step);
  }
  flight.decode = !step.runs.empty() && step.runs.front().mode == ipc::ForwardMode::kDecode;
  flight.done = idle_times_ ? stream_->record_time() : stream_->record();
  ++num_in_flight_;
}

void ProgramRunner::place_adapters(const ipc::Step& step) {
  REFRAIN_CHECK(adapters_ != nullptr || (step.placements.empty() && !step.has_lora),
                "step {} has LoRA adapters, this group none", step.step);
  for (const ipc::AdapterPlacement& placement : step.placements)
    adapters_->place(placement.place, placement.adapter, *stream_);
}

Status ProgramRunner::load_adapter(const ipc::LoadAdapter& message,
                                   const std::function<void()>& alive) {
  if (adapters_ == nullptr)
    return fail(ErrorCode::kInvalidArgument, "LoRA adapters are off (--enable-lora)");
  REFRAIN_ASSIGN_OR_RETURN(const std::filesystem::path directory,
                           options_.adapters.find(message.name, message.digest));
  REFRAIN_ASSIGN_OR_RETURN(const PeftAdapter adapter, PeftAdapter::open(directory));
  const auto open_model = [this]() -> Result<std::unique_ptr<WeightSource>> {
    if (options_.config.load_dummy) return dummy_weights(options_.config.seed);
    return open_checkpoint(options_.model_directory);
  };
  return adapters_->load(message.id, adapter, open_model, alive);
}

void ProgramRunner::unload_adapter(AdapterId id) {
  if (adapters_ != nullptr) adapters_->unload(id, *stream_);
}

void ProgramRunner::forget_adapters() {
  if (adapters_ != nullptr) adapters_->forget_all(*stream_);
}

bool ProgramRunner::needs_tokens_before(const ipc::Step& step) const {
  const bool ends_in_submit = step.audit || (dump_ && dump_->more()) || device_.runs_at_once();
  if (!ends_in_submit) return false;
  if (std::ranges::any_of(step.setups, &ipc::SlotSetup::follows_output)) return true;
  return std::ranges::any_of(rows_of(step).slot,
                             [this](SlotId slot) { return grammars_->constrains(slot); });
}

void ProgramRunner::run_ops(const ipc::Step& step, const BatchShape& batch, InFlight& flight) {
  if (idle_times_) flight.begun = stream_->record_time();
  if (step.runs.front().parts != 1) {
    run_part(step, batch, flight);
  } else if (PromptScorer::scores(step)) {
    REFRAIN_CHECK(scorer_ != nullptr && !step.audit && flight.dispatch.mode == RuntimeMode::kNone,
                  "step {} scores prompts: it runs without graphs and without an audit", step.step);
    last_lowering_ = hosted().scoring.get();
    flight.prompt = scorer_->run(step, batch);
    ++pool_->counters().num_eager_runs;
    flight.ran_graph = false;
  } else if (dump_ && dump_->more()) {
    const BatchDescriptor key = executed_key(hosted(), flight.dispatch);
    last_lowering_ = &hosted().lowering(key);
    dump_->run(last_lowering_->context, key, step, flight.num_tokens, flight.turn);
    ++pool_->counters().num_eager_runs;
    flight.ran_graph = false;
  } else {
    flight.ran_graph = forward(hosted(), flight.dispatch, batch);
    last_lowering_ = &hosted().lowering(executed_key(hosted(), flight.dispatch));
  }
}

BatchDescriptor ProgramRunner::executed_key(const HostedProgram& program,
                                            const Dispatch& dispatch) const {
  if (dispatch.mode == RuntimeMode::kNone) return dispatch.key;
  return program.executables.at(dispatch.mode, dispatch.id).key;
}

bool ProgramRunner::forward(const HostedProgram& program, const Dispatch& dispatch,
                            const BatchShape& batch) {
  const BatchDescriptor key = executed_key(program, dispatch);
  const Lowering& lowering = program.lowering(key);
  const OpContext& context = lowering.context;
  GraphCounters& counters = pool_->counters();
  if (dispatch.mode != RuntimeMode::kNone) {
    const Executable& executable = program.executables.at(dispatch.mode, dispatch.id);
    if (eager_at_key_) {
      run_pieces_eagerly(context, executable, batch, counters);
      return false;
    }
    if (options_.config.debug_cudagraph) {
      const std::string moved = describe_moved(lowering.program, executable.addresses,
                                               collect_addresses(context, lowering.all_ops()));
      REFRAIN_CHECK(moved.empty(), "replay of {} {}: {}", ipc::to_string(dispatch.mode),
                    executable.key.num_tokens, moved);
    }
    const RangeScope range(context, [&] {
      return fmt::format("step {} {}", ipc::to_string(dispatch.mode), executable.key.num_tokens);
    });
    run_pieces(context, executable, batch, counters);
    return true;
  }
  launch_ops(context, lowering.all_ops(), key, &batch);
  ++counters.num_eager_runs;
  return false;
}

// CG-39.
void ProgramRunner::run_part(const ipc::Step& step, const BatchShape& batch, InFlight& flight) {
  REFRAIN_CHECK(
      split_ != nullptr && step.runs.size() == 1 && !step.audit,
      "step {}: a part of a run takes no draft model, no audit, and workers that were told "
      "of it (split_prefill)",
      step.step);
  for (const SlotId slot : flight.slots)  // each part would count the output tokens it is fed
    REFRAIN_CHECK(!writer_->uses_history(slot), "step {}: slot {} has penalties, its run no parts",
                  step.step, slot);
  const Dispatch& dispatch = flight.dispatch;
  const BatchDescriptor key = executed_key(hosted(), dispatch);
  flight.ran_graph = dispatch.mode != RuntimeMode::kNone;
  last_lowering_ = &hosted().lowering(key);
  split_->run(step, *last_lowering_, key,
              flight.ran_graph ? &hosted().executables.at(dispatch.mode, dispatch.id) : nullptr,
              batch, *stream_, pool_->counters());
}

// Behind the language model's ops, over the same rows: its drafts are for the next step. It has no
// LoRA adapters, whose requests the language model verifies with theirs, and reads no prefix once.
void ProgramRunner::run_draft(const BatchShape& batch) {
  REFRAIN_CHECK(draft() != nullptr, "a run of a draft model, which this worker has not");
  BatchShape own = batch;
  own.has_lora = own.cascade = false;
  forward(*draft(), draft()->dispatcher->dispatch(own), own);
}

void ProgramRunner::poison() {
  poison_->fill(*stream_, pool_->arena(), pool_->arena_bytes());
  for (const auto& program : programs_) {
    for (const PagedLayer& layer : program->cache->layers()) {
      poison_->fill(*stream_, program->cache->address(layer),
                    static_cast<size_t>(layer.block_bytes(options_.config.block_size)));
    }
  }
}

void ProgramRunner::note_row_outputs(const ipc::Step& step, InFlight& flight) const {
  flight.num_logprobs.clear();
  flight.samples.clear();
  flight.slots.clear();
  flight.followers.clear();
  flight.num_logits.clear();
  flight.with_logprobs = flight.with_top = false;
  const ipc::Rows& rows = rows_of(step);
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const bool samples = (rows.flags[row] & ipc::kSamples) != 0;
    const int32_t wanted = samples ? writer_->num_logprobs(rows.slot[row]) : -1;
    flight.samples.push_back(samples);
    flight.slots.push_back(rows.slot[row]);
    flight.followers.push_back(samples ? grammars_->follower(rows.slot[row]) : nullptr);
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    flight.num_logits.push_back(verifies ? rows.num_tokens[row] : 1);
    flight.num_logprobs.push_back(std::min(wanted, kMaxLogprobs));
    flight.with_logprobs = flight.with_logprobs || wanted >= 0;
    flight.with_top = flight.with_top || wanted > 0;
  }
}

std::optional<ipc::StepResult> ProgramRunner::wait_unless(const StopFn& stop) {
  REFRAIN_CHECK(num_in_flight_ > 0, "no step is in flight");
  const int index = first_flight_;
  InFlight& flight = flights_[static_cast<size_t>(index)];
  if (!flight.done->wait(stop)) return std::nullopt;
  if (counter_check_ && flight.num_tokens > 0) counter_check_->check(flight.step, index);
  if (idle_times_) {
    idle_times_->add(flight.decode, std::move(flight.begun), std::move(flight.done));
  }
  flight.done.reset();
  first_flight_ = (first_flight_ + 1) % kMaxInFlight;
  --num_in_flight_;
  ipc::StepResult result = make_result(flight);
  follow_grammars(flight, result);
  return result;
}

// Every rank: each makes its masks itself, of the same tokens. Those of the next step, which runs
// already, follow from them.
void ProgramRunner::follow_grammars(const InFlight& flight, const ipc::StepResult& result) {
  std::vector<GrammarMasks::Taken> taken;
  for (size_t row = 0; row < flight.followers.size(); ++row) {
    if (flight.followers[row] == nullptr) continue;
    const auto tokens = result.tokens.begin();
    taken.push_back({flight.followers[row],
                     {tokens + result.token_offsets[row], tokens + result.token_offsets[row + 1]}});
  }
  InFlight& next = flights_[static_cast<size_t>(first_flight_)];
  const bool runs = num_in_flight_ > 0;
  grammars_->post(std::move(taken), runs ? next.turn : 0,
                  runs ? std::move(next.masks) : std::vector<GrammarMasks::Row>());
}

ipc::StepResult ProgramRunner::make_result(InFlight& flight) const {
  ipc::StepResult result;
  result.step = flight.step;
  result.rank = options_.rank;
  result.mode = flight.ran_graph ? flight.dispatch.mode : RuntimeMode::kNone;
  result.key_tokens = flight.dispatch.key.num_tokens;
  result.key_reqs = flight.dispatch.key.num_reqs;
  result.key_uniform = flight.dispatch.key.uniform;
  result.key_lora = flight.dispatch.key.has_lora;
  result.num_tokens = flight.num_tokens;
  result.audit = flight.audit;
  result.prompt = std::move(flight.prompt);
  result.device_ms = static_cast<float>(seconds_between(flight.start, steady_clock().now()) * 1e3);
  if (flight.num_tokens == 0) return result;
  if (!flight.ends) {  // no token, and no output of this turn
    result.token_offsets.assign(flight.samples.size() + 1, 0);
    return result;
  }
  check_turn(flight);
  if (pool_op(hosted().program) != nullptr) {
    add_pooled(flight, result);
    return result;
  }
  add_tokens(flight, result);
  for (size_t row = 0; row < flight.followers.size(); ++row)
    if (flight.followers[row] != nullptr && flight.followers[row]->given_up())
      result.too_slow.push_back(static_cast<int32_t>(row));
  if (flight.with_logprobs) add_logprobs(flight, result);
  return result;
}

void ProgramRunner::check_turn(const InFlight& flight) const {
  const uint32_t* pooled = buffers_->pooled(flight.turn).turn;
  const uint32_t turn = pooled != nullptr ? *pooled : *buffers_->outputs(flight.turn).turn;
  if (turn == flight.turn) return;
  throw DeviceError(fmt::format(
      "step {}: the device gave the results of turn {}, not {}: it and this process disagree on "
      "the steps that ran",
      flight.step, turn, flight.turn));
}

// A vector for each row that ends its prompt, and a token that stands for it. One that is no vector
// of numbers ends its request, as a row without a token does.
void ProgramRunner::add_pooled(const InFlight& flight, ipc::StepResult& result) const {
  const auto cols = static_cast<size_t>(options_.model.hidden_size);
  const float* at = buffers_->pooled(flight.turn).pooled;
  result.token_offsets.push_back(0);
  for (size_t row = 0; row < flight.samples.size(); ++row, at += cols) {
    if (flight.samples[row]) {
      const bool numbers = std::all_of(at, at + cols, [](float x) { return std::isfinite(x); });
      result.tokens.push_back(numbers ? 0 : ipc::kNoFiniteLogit);
      result.pooled.insert(result.pooled.end(), at, at + cols);
    }
    result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
  }
}

// A row that should have sampled and has no token: NaN in weights or activations, or every token
// forbidden. It ends its request, and others go on.
void ProgramRunner::add_tokens(const InFlight& flight, ipc::StepResult& result) const {
  const kernels::SampleOutputs& out = buffers_->outputs(flight.turn);
  result.token_offsets.push_back(0);
  int32_t first = 0;
  for (size_t row = 0; row < flight.samples.size(); ++row) {
    for (int32_t at = first; at < first + tokens_of(flight, row); ++at)
      result.tokens.push_back(out.tokens[at] < 0 ? ipc::kNoFiniteLogit : out.tokens[at]);
    result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
    first += flight.num_logits[row];
  }
  const kernels::AcceptOutputs& taken = buffers_->accepted(flight.turn);
  if (taken.drafted != nullptr)
    result.drafted.assign(taken.drafted, taken.drafted + flight.num_reqs);
}

// How many of the row's tokens are taken.
int32_t ProgramRunner::tokens_of(const InFlight& flight, size_t row) const {
  if (!flight.samples[row]) return 0;
  const kernels::AcceptOutputs& taken = buffers_->accepted(flight.turn);
  return taken.accepted == nullptr ? 1 : taken.accepted[row];
}

void ProgramRunner::add_logprobs(const InFlight& flight, ipc::StepResult& result) const {
  const kernels::SampleOutputs& out = buffers_->outputs(flight.turn);
  result.top_offsets.push_back(0);
  int32_t first_logits = 0;
  for (size_t row = 0; row < flight.samples.size(); ++row) {
    const int32_t wanted = std::max(0, flight.num_logprobs[row]);
    for (int32_t at = first_logits; at < first_logits + tokens_of(flight, row); ++at) {
      result.logprobs.push_back(out.logprobs[at]);
      const int64_t first = int64_t{at} * kMaxLogprobs;
      for (int32_t i = 0; i < wanted && out.top_tokens[first + i] >= 0; ++i) {
        result.top_tokens.push_back(out.top_tokens[first + i]);
        result.top_logprobs.push_back(out.top_logprobs[first + i]);
      }
      result.top_offsets.push_back(static_cast<int32_t>(result.top_tokens.size()));
    }
    first_logits += flight.num_logits[row];
  }
}

std::vector<float> ProgramRunner::read_logits() {
  REFRAIN_CHECK(num_in_flight_ == 0, "logits are read between steps");
  const Lowering& lowering = last_lowering_ == nullptr ? hosted() : *last_lowering_;
  return worker::read_logits(lowering, last_logits_, last_padded_, device_, *stream_);
}

// What the host gives bit by bit the same, whatever the padding, must be the same.
void ProgramRunner::audit(const BatchShape& batch, InFlight& flight) {
  stream_->synchronize();
  std::vector<StepAudit::Row> rows;
  for (size_t row = 0; row < flight.samples.size(); ++row) {
    const SlotId slot = flight.slots[row];
    const bool samples = flight.samples[row];
    // Whose tokens are counted takes one a step.
    for (int32_t i = 0; i < flight.num_logits[row]; ++i)
      rows.push_back({slot, samples, samples && writer_->plainly_greedy(slot),
                      samples && i == 0 && writer_->uses_history(slot)});
  }
  const RuntimeMode mode = flight.ran_graph ? flight.dispatch.mode : RuntimeMode::kNone;
  flight.audit =
      audit_->run({*last_lowering_, executed_key(hosted(), flight.dispatch), mode, batch,
                   std::move(rows), flight.slots, buffers_->outputs(flight.turn).tokens},
                  batch.has_lora ? *hosted().lora : hosted(), *stream_, device_.runs_at_once());
}

}  // namespace refrain::worker
