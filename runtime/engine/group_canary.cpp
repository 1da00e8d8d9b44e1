#include "runtime/engine/group_canary.h"

#include <algorithm>
#include <memory>

#include "runtime/base/check.h"

namespace refrain {

void GroupCanary::begin(Scheduler& scheduler) {
  scheduler_ = &scheduler;
  last_answer_ = executor_.clock().now();
  watch();
}

void GroupCanary::end() {
  executor_.cancel(timer_);
  scheduler_ = nullptr;
  out_ = false;
}

void GroupCanary::answered(TimePoint now) {
  last_answer_ = now;
  ++num_answers_;
}

// A canary whenever no step was answered for a while and none is asked.
void GroupCanary::watch() {
  const Duration since = executor_.clock().now() - last_answer_;
  const bool idle = scheduler_->num_unfinished() == 0 && scheduler_->steps_in_flight() == 0;
  if (idle && since >= kAfter) {
    send();
    pump_();
  }
  const Duration wait = since >= kAfter ? kAfter : kAfter - since;
  timer_ = run_later_(wait, [this] {
    if (scheduler_ != nullptr) watch();
  });
}

// One token through scheduler, transport, device and back, as any request's, and before them.
void GroupCanary::send() {
  if (out_) return;
  const std::vector<TokenId> prompt = {0};
  SequenceParams params;
  params.max_tokens = 1;
  params.setup.temperature = 0;
  const Status added = scheduler_->add(
      std::make_unique<Sequence>(kCanaryRequest, prompt, std::move(params)), digest_of(prompt));
  REFRAIN_CHECK(added.has_value(), "the canary was refused: {}", added.error().message);
  out_ = true;
}

std::optional<bool> GroupCanary::take(std::vector<TokenEvent>& events) {
  if (!out_) return std::nullopt;
  const auto canary =
      std::ranges::find(events, kCanaryRequest, [](const TokenEvent& event) { return event.id; });
  if (canary == events.end()) return std::nullopt;
  const bool good = canary->stop != StopCause::kNoLogit;
  events.erase(canary);
  out_ = false;
  return good;
}

}  // namespace refrain
