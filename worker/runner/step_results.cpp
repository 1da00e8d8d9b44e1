#include "worker/runner/step_results.h"

#include <algorithm>
#include <cmath>

#include "worker/dispatch/batch_shape.h"

namespace refrain::worker {

using kernels::kMaxLogprobs;

StepResults::StepResults(const Program& program, const InputBuffers& buffers, int rank)
    : buffers_(buffers), rank_(rank) {
  if (const PoolOp* pool = pool_op(program))
    pooled_cols_ = static_cast<size_t>(program.value(pool->pooled).cols);
}

void StepResults::note_rows(const ipc::Step& step, const SlotTable& slots,
                            const GrammarMasks& grammars, StepInFlight& flight) {
  flight.rows.clear();
  flight.slots.clear();
  flight.with_logprobs = false;
  const ipc::Rows& rows = rows_of(step);
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const SlotId slot = rows.slot[row];
    const bool samples = (rows.flags[row] & ipc::kSamples) != 0;
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    const int32_t wanted = samples ? slots.at(slot).num_logprobs : -1;
    flight.slots.push_back(slot);
    flight.rows.push_back({slot, samples, verifies ? rows.num_tokens[row] : 1,
                           std::min(wanted, kMaxLogprobs),
                           samples ? grammars.follower(slot) : nullptr});
    flight.with_logprobs = flight.with_logprobs || wanted >= 0;
  }
}

ipc::StepResult StepResults::make(StepInFlight& flight) const {
  ipc::StepResult result;
  result.step = flight.step;
  result.rank = rank_;
  result.mode = flight.ran_graph ? flight.dispatch.mode : RuntimeMode::kNone;
  result.key_tokens = flight.dispatch.key.num_tokens;
  result.key_reqs = flight.dispatch.key.num_reqs;
  result.key_uniform = flight.dispatch.key.uniform;
  result.key_lora = flight.dispatch.key.has_lora;
  result.key_hidden = flight.dispatch.key.hidden;
  result.num_tokens = flight.num_tokens;
  result.audit = flight.audit;
  result.prompt = std::move(flight.prompt);
  result.device_ms = static_cast<float>(seconds_between(flight.start, steady_clock().now()) * 1e3);
  if (flight.num_tokens == 0) return result;
  if (!flight.ends) {  // no token, and no output of this turn
    result.token_offsets.assign(flight.rows.size() + 1, 0);
    return result;
  }
  check_turn(flight);
  if (pooled_cols_ > 0) {
    add_pooled(flight, result);
    return result;
  }
  add_tokens(flight, result);
  for (size_t row = 0; row < flight.rows.size(); ++row)
    if (flight.rows[row].follower != nullptr && flight.rows[row].follower->given_up())
      result.too_slow.push_back(static_cast<int32_t>(row));
  if (flight.with_logprobs) add_logprobs(flight, result);
  return result;
}

void StepResults::check_turn(const StepInFlight& flight) const {
  const uint32_t* pooled = buffers_.pooled(flight.turn).turn;
  const uint32_t turn = pooled != nullptr ? *pooled : *buffers_.outputs(flight.turn).turn;
  if (turn == flight.turn) return;
  throw DeviceError(fmt::format(
      "step {}: the device gave the results of turn {}, not {}: it and this process disagree on "
      "the steps that ran",
      flight.step, turn, flight.turn));
}

// A vector for each row that ends its prompt, and a token that stands for it. One that is no vector
// of numbers ends its request, as a row without a token does.
void StepResults::add_pooled(const StepInFlight& flight, ipc::StepResult& result) const {
  const float* at = buffers_.pooled(flight.turn).pooled;
  result.token_offsets.push_back(0);
  for (const StepInFlight::Row& row : flight.rows) {
    if (row.samples) {
      const bool numbers =
          std::all_of(at, at + pooled_cols_, [](float x) { return std::isfinite(x); });
      result.tokens.push_back(numbers ? 0 : ipc::kNoFiniteLogit);
      result.pooled.insert(result.pooled.end(), at, at + pooled_cols_);
    }
    result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
    at += pooled_cols_;
  }
}

// A row that should have sampled and has no token: NaN in weights or activations, or every token
// forbidden. It ends its request, and others go on.
void StepResults::add_tokens(const StepInFlight& flight, ipc::StepResult& result) const {
  const kernels::SampleOutputs& out = buffers_.outputs(flight.turn);
  result.token_offsets.push_back(0);
  int32_t first = 0;
  for (size_t row = 0; row < flight.rows.size(); ++row) {
    for (int32_t at = first; at < first + tokens_of(flight, row); ++at)
      result.tokens.push_back(out.tokens[at] < 0 ? ipc::kNoFiniteLogit : out.tokens[at]);
    result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
    first += flight.rows[row].num_logits;
  }
  const kernels::AcceptOutputs& taken = buffers_.accepted(flight.turn);
  if (taken.drafted != nullptr)
    result.drafted.assign(taken.drafted, taken.drafted + flight.num_reqs);
}

// How many of the row's tokens are taken.
int32_t StepResults::tokens_of(const StepInFlight& flight, size_t row) const {
  if (!flight.rows[row].samples) return 0;
  const kernels::AcceptOutputs& taken = buffers_.accepted(flight.turn);
  return taken.accepted == nullptr ? 1 : taken.accepted[row];
}

void StepResults::add_logprobs(const StepInFlight& flight, ipc::StepResult& result) const {
  const kernels::SampleOutputs& out = buffers_.outputs(flight.turn);
  result.top_offsets.push_back(0);
  int32_t first_logits = 0;
  for (size_t row = 0; row < flight.rows.size(); ++row) {
    const int32_t wanted = std::max(0, flight.rows[row].num_logprobs);
    for (int32_t at = first_logits; at < first_logits + tokens_of(flight, row); ++at) {
      result.logprobs.push_back(out.logprobs[at]);
      const int64_t first = int64_t{at} * kMaxLogprobs;
      for (int32_t i = 0; i < wanted && out.top_tokens[first + i] >= 0; ++i) {
        result.top_tokens.push_back(out.top_tokens[first + i]);
        result.top_logprobs.push_back(out.top_logprobs[first + i]);
      }
      result.top_offsets.push_back(static_cast<int32_t>(result.top_tokens.size()));
    }
    first_logits += flight.rows[row].num_logits;
  }
}

}  // namespace refrain::worker
