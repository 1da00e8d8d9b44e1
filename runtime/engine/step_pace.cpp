#include "runtime/engine/step_pace.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"

namespace refrain {
namespace {

// Four classes an octave: steps of one class differ by less than a fifth in size.
size_t quarter_octave(size_t size) {
  return static_cast<size_t>(std::lround(4 * std::log2(static_cast<double>(size))));
}

}  // namespace

void StepPace::sent(const ipc::Step& step, TimePoint now) {
  // A part of a run takes as long as its share of the tokens.
  const int32_t parts = step.runs.empty() ? 1 : step.runs.front().parts;
  const auto tokens = static_cast<size_t>(std::max<int64_t>(ipc::num_tokens(step) / parts, 1));
  const bool decode = std::ranges::all_of(step.runs, [](const ipc::Run& run) {
    return run.program != ipc::ProgramId::kLanguageModel || run.mode == ipc::ForwardMode::kDecode ||
           run.mode == ipc::ForwardMode::kTargetVerify || run.mode == ipc::ForwardMode::kPrebuilt;
  });
  const size_t half = kClasses / 2;
  Waiting waiting;
  waiting.tokens = static_cast<int32_t>(tokens);
  for (const ipc::Run& run : step.runs) {
    for (size_t row = 0; row < run.rows.num_tokens.size(); ++row) {
      const int32_t count = run.rows.num_tokens[row];
      const bool verifies = (run.rows.flags[row] & ipc::kVerifies) != 0;
      if (count > 1 && !verifies) waiting.prompt_tokens += count / parts;
    }
  }
  waiting.index = std::min(quarter_octave(tokens), half - 1) + (decode ? 0 : half);
  waiting.units = decode ? 1.0 : static_cast<double>(tokens);
  waiting.begun = now;
  waiting.behind = !steps_.empty();
  steps_.push_back(waiting);
}

Duration StepPace::done(TimePoint now) {
  REFRAIN_CHECK(!steps_.empty(), "a step is done that was not sent");
  const Waiting step = steps_.front();
  steps_.pop_front();
  if (!steps_.empty()) steps_.front().begun = now;
  if (step.prompt_tokens >= kEnoughTokens) {
    const double sample = seconds_between(step.begun, now) / step.tokens;
    seconds_a_token_ =
        seconds_a_token_ ? *seconds_a_token_ + kNewest * (sample - *seconds_a_token_) : sample;
  }
  if (!step.behind) return now - step.begun;
  Class& known = classes_[step.index];
  const double seconds = seconds_between(step.begun, now) / step.units;
  const double weight = known.seen == 0 ? 1.0 : seconds < known.seconds ? kFaster : kSlower;
  known.seconds += weight * (seconds - known.seconds);
  known.seen = std::min(known.seen + 1, kEnough);
  return now - step.begun;
}

void StepPace::clear() { steps_.clear(); }

// What a step with prompts computes in so many seconds, as far as its speed is known.
int32_t StepPace::tokens_in(double seconds) const {
  if (!seconds_a_token_) return kUnknownTokens;
  const double fit = seconds / std::max(*seconds_a_token_, 1e-9);
  if (fit >= most_) return most_;
  return std::max(static_cast<int32_t>(fit) / kLeastTokens * kLeastTokens, kLeastTokens);
}

int32_t StepPace::prompt_tokens() const { return std::min(most_, tokens_in(kLongestStep)); }

int32_t StepPace::long_prompt_tokens() const {
  return std::min(prompt_tokens(), std::max(tokens_in(kLongChunk), kLeastLongChunk));
}

std::optional<double> StepPace::expected_seconds(const Waiting& step) const {
  const auto known = [this](size_t index) { return classes_[index].seen >= kEnough; };
  const auto expected = [&](size_t index, double doubt) {
    return classes_[index].seconds * step.units * (1 - doubt);
  };
  if (known(step.index)) return expected(step.index, kDoubt);
  const size_t first = kClasses / 2;  // of steps with prompts
  if (step.index < first) return std::nullopt;
  for (size_t away = 1; away < kClasses - first; ++away) {  // larger ones take less a token
    if (step.index + away < kClasses && known(step.index + away))
      return expected(step.index + away, kDoubt);
    if (step.index >= first + away && known(step.index - away))
      return expected(step.index - away, 2 * kDoubt);
  }
  return std::nullopt;
}

std::optional<TimePoint> StepPace::plan_at(Duration lead) const {
  if (steps_.empty()) return std::nullopt;
  const auto seconds = expected_seconds(steps_.front());
  if (!seconds) return std::nullopt;
  return steps_.front().begun + to_duration(*seconds) - lead;
}

}  // namespace refrain
