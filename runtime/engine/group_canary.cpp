// The part of GroupService that tests its workers with a canary, a request of one token: idle ones,
// to see that they answer; those of a new group, before the requests that ended the one
// before are blamed; and those whose rows of different requests have no finite logit.

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/engine/group_service.h"

namespace refrain {

// As long as the group is ready: a canary whenever no step was answered for a while and none is
// asked.
void GroupService::watch_idle() {
  const Duration since = now() - last_answer_;
  const bool idle = scheduler_->num_unfinished() == 0 && scheduler_->steps_in_flight() == 0;
  if (idle && since >= kCanaryAfter) {
    send_canary();
    handlers_.pump();
  }
  const Duration wait = since >= kCanaryAfter ? kCanaryAfter : kCanaryAfter - since;
  idle_timer_ = executor_->post_after(wait, [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && self->scheduler_) self->watch_idle();
  });
}

// One token through scheduler, transport, device and back, as any request's, and before them.
void GroupService::send_canary() {
  if (canary_out_) return;
  const std::vector<TokenId> prompt = {0};
  SequenceParams params;
  params.max_tokens = 1;
  params.setup.temperature = 0;
  const Status added = scheduler_->add(
      std::make_unique<Sequence>(kCanaryRequest, prompt, std::move(params)), digest_of(prompt));
  REFRAIN_CHECK(added.has_value(), "the canary was refused: {}", added.error().message);
  canary_out_ = true;
}

// Takes the canary's token out of a step's events: whether it has one. Nothing: it is not there.
std::optional<bool> GroupService::take_canary() {
  if (!canary_out_) return std::nullopt;
  const auto canary =
      std::ranges::find(events_, kCanaryRequest, [](const TokenEvent& event) { return event.id; });
  if (canary == events_.end()) return std::nullopt;
  const bool good = canary->stop != StopCause::kNoLogit;
  events_.erase(canary);
  canary_out_ = false;
  return good;
}

// Each ends its own request, and only when this goes on the workers are tested.
void GroupService::take_rows_without_logit() {
  bool goes_on = false;
  std::erase_if(events_, [&](const TokenEvent& event) {
    if (event.stop == StopCause::kGrammar) {
      handlers_.on_slow_grammar(event.id);
      return true;
    }
    if (event.stop != StopCause::kNoLogit) return false;
    handlers_.on_no_logit(event.id);
    goes_on |= logit_failures_.add(num_answers_);
    return true;
  });
  if (!goes_on || trial_) return;
  log::warn("{} requests had no finite logit within {} steps: a canary decides",
            LogitFailures::kRequests, LogitFailures::kSteps);
  send_canary();
}

}  // namespace refrain
