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
  const size_t tokens = std::max<size_t>(step.token_ids.size(), 1);
  const bool decode = step.mode == ipc::ForwardMode::kDecode;
  const size_t half = kClasses / 2;
  Waiting waiting;
  waiting.index = std::min(quarter_octave(tokens), half - 1) + (decode ? 0 : half);
  waiting.units = decode ? 1.0 : static_cast<double>(tokens);
  waiting.begun = now;
  waiting.behind = !steps_.empty();
  steps_.push_back(waiting);
}

void StepPace::done(TimePoint now) {
  REFRAIN_CHECK(!steps_.empty(), "a step is done that was not sent");
  const Waiting step = steps_.front();
  steps_.pop_front();
  if (!steps_.empty()) steps_.front().begun = now;
  if (!step.behind) return;
  Class& known = classes_[step.index];
  const double seconds = seconds_between(step.begun, now) / step.units;
  const double weight = known.seen == 0 ? 1.0 : seconds < known.seconds ? kFaster : kSlower;
  known.seconds += weight * (seconds - known.seconds);
  known.seen = std::min(known.seen + 1, kEnough);
}

void StepPace::clear() { steps_.clear(); }

std::optional<TimePoint> StepPace::plan_at(Duration lead) const {
  if (steps_.empty()) return std::nullopt;
  const Waiting& step = steps_.front();
  const Class& known = classes_[step.index];
  if (known.seen < kEnough) return std::nullopt;
  const double seconds = known.seconds * step.units * (1 - kDoubt);
  return step.begun + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)) -
         lead;
}

}  // namespace refrain
