#include "runtime/sched/step_results.h"

#include <algorithm>
#include <utility>

namespace refrain {
namespace {

// The row's share of what was told, from entry `begin` on, as far as its sequence lacks it.
void take_scores(const ipc::PromptScores& told, size_t begin, const PlannedRow& row) {
  ipc::PromptScores& all = row.sequence->scores;
  if (all.top_offsets.empty()) all.top_offsets.push_back(0);
  for (int32_t i = 0; i < row.scored; ++i) {
    if (row.from + i != static_cast<int32_t>(all.logprobs.size())) continue;
    const size_t at = begin + static_cast<size_t>(i);
    all.logprobs.push_back(told.logprobs[at]);
    all.ranks.push_back(told.ranks[at]);
    const int32_t first = told.top_offsets[at], last = told.top_offsets[at + 1];
    all.top_tokens.insert(all.top_tokens.end(), told.top_tokens.begin() + first,
                          told.top_tokens.begin() + last);
    all.top_logprobs.insert(all.top_logprobs.end(), told.top_logprobs.begin() + first,
                            told.top_logprobs.begin() + last);
    all.top_offsets.push_back(static_cast<int32_t>(all.top_tokens.size()));
  }
}

}  // namespace

Status StepResults::check(const ipc::StepResult& result) const {
  if (in_flight_.empty() || in_flight_.front().step != result.step)
    return fail(ErrorCode::kInternal, "an answer to step {} came while waiting for step {}",
                result.step, in_flight_.empty() ? 0 : in_flight_.front().step);
  const std::vector<PlannedRow>& rows = in_flight_.front().rows;
  const size_t answered = std::max<size_t>(result.token_offsets.size(), 1) - 1;
  if (answered != rows.size())
    return fail(ErrorCode::kInternal, "the answer to step {} has {} rows instead of {}",
                result.step, answered, rows.size());
  int64_t scored = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    scored += rows[i].scored;
    const int32_t count = result.token_offsets[i + 1] - result.token_offsets[i];
    if (count < rows[i].least || count > rows[i].most)
      return fail(ErrorCode::kInternal,
                  "the answer to step {} has {} tokens in row {}, which gives {} to {}",
                  result.step, count, i, rows[i].least, rows[i].most);
  }
  if (scored != std::ssize(result.prompt.logprobs))
    return fail(ErrorCode::kInternal, "the answer to step {} scores {} prompt tokens instead of {}",
                result.step, result.prompt.logprobs.size(), scored);
  if (!std::ranges::is_sorted(result.too_slow))
    return fail(ErrorCode::kInternal, "the answer to step {} names slow rows in no order",
                result.step);
  const int64_t pooled = std::ssize(result.tokens) * options_.pooled_cols;
  if (pooled != std::ssize(result.pooled))
    return fail(ErrorCode::kInternal, "the answer to step {} has {} pooled numbers instead of {}",
                result.step, result.pooled.size(), pooled);
  for (const TokenId token : result.tokens)
    if (token < 0 && token != ipc::kNoFiniteLogit)
      return fail(ErrorCode::kInternal, "the answer to step {} has token {}", result.step, token);
  return {};
}

PlannedStep StepResults::take(const ipc::StepResult& result, TimePoint now,
                              std::vector<TokenEvent>& events) {
  PlannedStep done = std::move(in_flight_.front());
  in_flight_.pop_front();
  size_t scored = 0;
  for (size_t i = 0; i < done.rows.size(); ++i) {
    const PlannedRow& row = done.rows[i];
    Sequence& sequence = *row.sequence;
    if (row.scored > 0) take_scores(result.prompt, scored, row);
    scored += static_cast<size_t>(row.scored);
    const int32_t more = result.token_offsets[i + 1] - result.token_offsets[i] - row.least;
    take_progress(row, more);
    if (!sequence.params.setup.grammar.empty()) {
      drafts_.forced += static_cast<uint64_t>(more);
    } else if (!result.drafted.empty()) {
      count_drafts(result.drafted[i], more);
    }
    if (std::ranges::binary_search(result.too_slow, static_cast<int32_t>(i)))
      end_for_grammar(sequence, events);
    const auto end = static_cast<size_t>(result.token_offsets[i + 1]);
    for (auto at = static_cast<size_t>(result.token_offsets[i]);
         at < end && sequence.state != SequenceState::kFinished; ++at)
      take_token(sequence, result, at, events);
    pools_.advance(sequence);
    const bool leaves =
        sequence.hands_over && row.least > 0 && sequence.state == SequenceState::kRunning;
    if (!leaves && row.least > 0) transfers_.withdraw(sequence);
    leaves ? transfers_.hand_over(sequence, now) : queues_.settle(sequence);
  }
  return done;
}

// It gave `more` tokens than the least, by which later rows were planned.
void StepResults::take_progress(const PlannedRow& row, int32_t more) {
  Sequence& sequence = *row.sequence;
  --sequence.in_flight;
  sequence.pending -= row.least;
  sequence.pending_most -= row.most;
  sequence.num_scheduled += more;
  sequence.num_computed = row.computed == ipc::kComputedOnDevice
                              ? static_cast<int32_t>(sequence.tokens.size()) + more
                              : row.computed;
}

// The vector that came with token `index`; null: the model generates.
std::shared_ptr<const std::vector<float>> StepResults::pooled_of(const ipc::StepResult& result,
                                                                 size_t index) const {
  if (options_.pooled_cols == 0) return nullptr;
  const auto first = result.pooled.begin() + static_cast<int64_t>(index) * options_.pooled_cols;
  return std::make_shared<const std::vector<float>>(first, first + options_.pooled_cols);
}

void StepResults::take_token(Sequence& sequence, const ipc::StepResult& result, size_t index,
                             std::vector<TokenEvent>& events) {
  const TokenId token = result.tokens[index];
  const bool none = token == ipc::kNoFiniteLogit;
  const StopCause stop =
      none ? StopCause::kNoLogit
           : sequence.append(token, options_.eos_token_ids, options_.max_model_len);
  events.push_back({sequence.id, index, token, sequence.cached_tokens, sequence.scheduled, stop,
                    nullptr, nullptr});
  if (sequence.params.setup.num_prompt_logprobs >= 0 && sequence.output_len() == 1)
    events.back().prompt = std::make_shared<const ipc::PromptScores>(sequence.scores);
  if (none) {
    pools_.distrust(sequence);  // what its row read may be what left it without a logit
  } else if (options_.pooled_cols > 0) {
    events.back().pooled = pooled_of(result, index);
  } else {
    ++generated_tokens_;
  }
  if (stop != StopCause::kNone) queues_.finish(sequence);
}

// A rank could not tell in time what its grammar allows: the ranks have no common token.
void StepResults::end_for_grammar(Sequence& sequence, std::vector<TokenEvent>& events) {
  if (sequence.state == SequenceState::kFinished) return;
  TokenEvent& event = events.emplace_back();
  event.id = sequence.id;
  event.stop = StopCause::kGrammar;
  queues_.finish(sequence);
}

void StepResults::count_drafts(int32_t drafted, int32_t accepted) {
  if (drafted <= 0) return;
  ++drafts_.rows;
  drafts_.tokens += static_cast<uint64_t>(drafted);
  for (int32_t i = 0; i < std::min(accepted, ipc::kMaxDrafts); ++i)
    ++drafts_.accepted[static_cast<size_t>(i)];
}

}  // namespace refrain
