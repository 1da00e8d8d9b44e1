// The part of EngineCore that finds a request which ends its workers: of those that were in
// flight at two losses in a row each runs alone until it has got past the steps that were lost. The
// one at which the workers are lost again is ended, the others go on (docs/scheduling.md).

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"

namespace refrain {
namespace {

// So many that are lost alone, one after the other, say that the workers fail with any request.
constexpr int kMostInARow = 4;

bool is_suspect(const std::unique_ptr<Sequence>& sequence) { return sequence->suspect(); }

}  // namespace

// In order of arrival.
void EngineCore::queue_again(std::unique_ptr<Sequence> sequence) {
  const auto later = std::ranges::upper_bound(queue_, sequence->id, {},
                                              [](const auto& other) { return other->id; });
  queue_.insert(later, std::move(sequence));
}

void EngineCore::give_up(const Sequence& sequence, const Error& error) {
  log::error("request {} was in flight at {} losses of its workers in a row; it is ended",
             sequence.id, sequence.group_losses);
  if (trials_.ended++ == 0) to_explain_ += Sequence::kSuspectLosses;
  ++trials_.ended_in_a_row;
  end(sequence.id, FinishReason::kError,
      Error{ErrorCode::kUnavailable,
            fmt::format("the request was running when its workers were lost, {} times; it is not "
                        "tried again. The last time: {}",
                        sequence.group_losses, error.message),
            {}});
}

// After a loss. Suspects of one loss stay suspects until each has run.
void EngineCore::isolate_suspects(const Error& error) {
  trials_.current = 0;
  const auto suspects = std::ranges::count_if(queue_, is_suspect);
  if (!trials_.on) {
    trials_ = {};
    if (suspects == 0) return;
    trials_.on = true;
    log::warn(
        "{} requests were in flight at two losses in a row; each runs alone, to find the one "
        "that ends its workers",
        suspects);
    tell_isolation(0);
  }
  if (trials_.ended_in_a_row < kMostInARow) return;
  log::error(
      "{} requests in a row ended their workers alone; the {} others that were in flight at "
      "two losses in a row end, too",
      trials_.ended_in_a_row, suspects);
  for (auto& sequence : std::exchange(queue_, {})) {
    if (is_suspect(sequence)) {
      give_up(*sequence, error);
    } else {
      queue_.push_back(std::move(sequence));
    }
  }
}

// After an answer. A request that completes shows that workers are not lost with any.
void EngineCore::note_completed() {
  if (!trials_.on && to_explain_ == 0) return;
  if (std::ranges::all_of(events_, [](const auto& e) { return e.stop == StopCause::kNone; }))
    return;
  trials_.ended_in_a_row = 0;
  if (to_explain_ > 0) tell_isolation(std::exchange(to_explain_, 0));
}

// Workers that do not even answer a canary are lost for no request's sake.
void EngineCore::tell_isolation(int explained) {
  if (isolation_handler) isolation_handler({trials_.on && !proving_, explained});
}

// A request that leaves may have ended its workers, and comes again: what it was alone with counts
// as its own, once the workers have shown that they are good without it.
void EngineCore::blame_for_losses(RequestId id) {
  const Sequence* sequence = scheduler_ ? scheduler_->find(id) : nullptr;
  for (const auto& queued : queue_)
    if (queued->id == id) sequence = queued.get();
  if (sequence != nullptr) to_explain_ += sequence->losses_alone;
}

// With the group ready. Goes on to the next suspect when the one before has ended or has got past
// the steps that were lost, and lets all run when there is none left.
void EngineCore::go_on_with_trials() {
  if (scheduler_->steps_in_flight() > 0) return;
  if (const Sequence* current = scheduler_->find(trials_.current)) {
    if (!current->past_loss()) return;
    trials_.ended_in_a_row = 0;
    for (auto& sequence : scheduler_->release_all()) {
      sequence->group_losses = 0;
      queue_again(std::move(sequence));
    }
  }
  while (begin_trial())
    if (scheduler_->num_unfinished() > 0) return;  // else it was refused
  end_isolation();
}

bool EngineCore::begin_trial() {
  const auto next = std::ranges::find_if(queue_, is_suspect);
  if (next == queue_.end()) return false;
  std::unique_ptr<Sequence> sequence = std::move(*next);
  queue_.erase(next);
  trials_.current = sequence->id;
  to_scheduler(std::move(sequence));
  return true;
}

void EngineCore::end_isolation() {
  log::warn("no suspect is left: {} ended their workers alone; all others run again",
            trials_.ended);
  trials_ = {};
  queue_to_scheduler();
  tell_isolation(0);
}

}  // namespace refrain
