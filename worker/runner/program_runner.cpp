// Steps of the ProgramRunner: check, fill, dispatch, pad, run, read the outputs.

#include "worker/runner/program_runner.h"

#include <algorithm>
#include <cstring>

#include "worker/graph/forward_mode.h"
#include "worker/runner/logits.h"

namespace refrain::worker {

using kernels::kMaxLogprobs;

void ProgramRunner::submit(const ipc::Step& step) {
  REFRAIN_CHECK(hosted_->dispatcher != nullptr && kv_cache_ != nullptr, "submit before capture");
  REFRAIN_CHECK(num_in_flight_ < kMaxInFlight, "step {}: {} steps are in flight already", step.step,
                num_in_flight_);
  const int index = (first_flight_ + num_in_flight_) % kMaxInFlight;
  InFlight& flight = flights_[static_cast<size_t>(index)];
  flight.start = steady_clock().now();
  flight.step = step.step;
  REFRAIN_CHECK(!step.audit || audit_ != nullptr, "step {} asks for an audit", step.step);
  flight.audit = {};
  writer_->write(step, *stream_);
  const BatchShape shape = batch_shape(step, hosted_->context.uniform_query_len);
  flight.dispatch = hosted_->dispatcher->dispatch(shape);
  flight.num_tokens = shape.num_tokens;
  flight.num_reqs = shape.num_reqs;
  note_row_outputs(step, flight);
  if (shape.num_tokens > 0) {
    if (poison_) poison();
    flight.turn = buffers_->begin_turn();
    run_ops(step, shape, flight);
    if (counter_check_) counter_check_->copy(*stream_, index);
    if (step.audit) audit(shape, flight);
    last_reqs_ = shape.num_reqs;
    last_padded_ = executed_key(flight.dispatch).num_reqs;
  } else {
    REFRAIN_CHECK(step.setups.empty() && step.block_slot.empty(),
                  "step {} brings slots or blocks but no tokens", step.step);
  }
  flight.decode = step.mode == ipc::ForwardMode::kDecode;
  flight.done = idle_times_ ? stream_->record_time() : stream_->record();
  ++num_in_flight_;
}

void ProgramRunner::run_ops(const ipc::Step& step, const BatchShape& batch, InFlight& flight) {
  if (idle_times_) flight.begun = stream_->record_time();
  if (dump_ && dump_->more()) {
    const BatchDescriptor key = executed_key(flight.dispatch);
    last_lowering_ = &hosted_->lowering(key);
    dump_->run(last_lowering_->context, key, step, flight.num_tokens, flight.turn);
    ++pool_->counters().num_eager_runs;
    flight.ran_graph = false;
  } else {
    flight.ran_graph = forward(step.mode, flight.dispatch, batch);
  }
}

BatchDescriptor ProgramRunner::executed_key(const Dispatch& dispatch) const {
  if (dispatch.mode == RuntimeMode::kNone) return dispatch.key;
  return hosted_->executables.at(dispatch.mode, dispatch.id).key;
}

bool ProgramRunner::forward(ipc::ForwardMode mode, const Dispatch& dispatch,
                            const BatchShape& batch) {
  const BatchDescriptor key = executed_key(dispatch);
  const Lowering& lowering = hosted_->lowering(key);
  const OpContext& context = lowering.context;
  GraphCounters& counters = pool_->counters();
  last_lowering_ = &lowering;
  if (dispatch.mode != RuntimeMode::kNone) {
    const Executable& executable = hosted_->executables.at(dispatch.mode, dispatch.id);
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
  switch (eager_path(mode)) {
    case EagerPath::kDecode:
    case EagerPath::kExtend:
      launch_ops(context, lowering.all_ops(), key, &batch);
      ++counters.num_eager_runs;
      break;
    case EagerPath::kSplitPrefill:
      for (const PieceRange& piece : lowering.pieces) {
        launch_ops(context, piece.ops, key, &batch);
        ++counters.num_eager_runs;
      }
      break;
    case EagerPath::kIdle:
      REFRAIN_CHECK(false, "an IDLE step has {} tokens", key.num_tokens);
  }
  return false;
}

void ProgramRunner::poison() {
  poison_->fill(*stream_, pool_->arena(), pool_->arena_bytes());
  for (const KvLayer& layer : kv_cache_->layers()) {
    poison_->fill(*stream_, kv_cache_->addresses()[static_cast<size_t>(layer.layer)],
                  static_cast<size_t>(layer.block_bytes(options_.config.block_size)));
  }
}

void ProgramRunner::note_row_outputs(const ipc::Step& step, InFlight& flight) const {
  flight.num_logprobs.clear();
  flight.samples.clear();
  flight.slots.clear();
  flight.with_logprobs = flight.with_top = false;
  for (size_t row = 0; row < step.row_slot.size(); ++row) {
    const bool samples = (step.row_flags[row] & ipc::kSamples) != 0;
    const int32_t wanted = samples ? writer_->num_logprobs(step.row_slot[row]) : -1;
    flight.samples.push_back(samples);
    flight.slots.push_back(step.row_slot[row]);
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
  return make_result(flight);
}

ipc::StepResult ProgramRunner::make_result(const InFlight& flight) const {
  ipc::StepResult result;
  result.step = flight.step;
  result.rank = options_.rank;
  result.mode = flight.ran_graph ? flight.dispatch.mode : RuntimeMode::kNone;
  result.key_tokens = flight.dispatch.key.num_tokens;
  result.key_reqs = flight.dispatch.key.num_reqs;
  result.key_uniform = flight.dispatch.key.uniform;
  result.num_tokens = flight.num_tokens;
  result.audit = flight.audit;
  result.device_ms = static_cast<float>(seconds_between(flight.start, steady_clock().now()) * 1e3);
  if (flight.num_tokens == 0) return result;
  const kernels::SampleOutputs& out = buffers_->outputs(flight.turn);
  if (*out.turn != flight.turn) {
    throw DeviceError(fmt::format(
        "step {}: the device gave the results of turn {}, not {}: it and this process disagree on "
        "the steps that ran",
        flight.step, *out.turn, flight.turn));
  }
  result.tokens.assign(out.tokens, out.tokens + flight.num_reqs);
  name_rows_without_logit(flight, result);
  if (flight.with_logprobs) add_logprobs(flight, result);
  return result;
}

// A row that should have sampled and has no token: NaN in weights or activations, or every token
// forbidden. It ends its request, and others go on.
void ProgramRunner::name_rows_without_logit(const InFlight& flight, ipc::StepResult& result) const {
  for (size_t row = 0; row < flight.samples.size(); ++row) {
    if (flight.samples[row] && result.tokens[row] < 0) result.tokens[row] = ipc::kNoFiniteLogit;
  }
}

void ProgramRunner::add_logprobs(const InFlight& flight, ipc::StepResult& result) const {
  const kernels::SampleOutputs& out = buffers_->outputs(flight.turn);
  result.logprobs.assign(out.logprobs, out.logprobs + flight.num_reqs);
  result.top_offsets.push_back(0);
  for (int32_t row = 0; row < flight.num_reqs; ++row) {
    const int32_t wanted = std::max(0, flight.num_logprobs[static_cast<size_t>(row)]);
    const int64_t first = int64_t{row} * kMaxLogprobs;
    for (int32_t i = 0; i < wanted && out.top_tokens[first + i] >= 0; ++i) {
      result.top_tokens.push_back(out.top_tokens[first + i]);
      result.top_logprobs.push_back(out.top_logprobs[first + i]);
    }
    result.top_offsets.push_back(static_cast<int32_t>(result.top_tokens.size()));
  }
}

std::vector<float> ProgramRunner::read_logits() {
  REFRAIN_CHECK(num_in_flight_ == 0, "logits are read between steps");
  const Lowering& lowering = last_lowering_ == nullptr ? *hosted_ : *last_lowering_;
  return worker::read_logits(lowering, last_reqs_, last_padded_, device_, *stream_);
}

// What the host gives bit by bit the same, whatever the padding, must be the same.
void ProgramRunner::audit(const BatchShape& batch, InFlight& flight) {
  stream_->synchronize();
  std::vector<StepAudit::Row> rows;
  for (size_t row = 0; row < flight.samples.size(); ++row) {
    const SlotId slot = flight.slots[row];
    const bool samples = flight.samples[row];
    rows.push_back({slot, samples, samples && writer_->plainly_greedy(slot),
                    samples && writer_->uses_history(slot)});
  }
  const RuntimeMode mode = flight.ran_graph ? flight.dispatch.mode : RuntimeMode::kNone;
  flight.audit = audit_->run({*last_lowering_, executed_key(flight.dispatch), mode, batch,
                              std::move(rows), buffers_->outputs(flight.turn).tokens},
                             *hosted_, *stream_, device_.runs_at_once());
}

}  // namespace refrain::worker
