#include "runtime/engine/live_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain {

void LiveRequests::open(RequestId id, GenerateRequest& request, OutputSink sink) {
  outputs_->open(request.output_thread, id, static_cast<int64_t>(request.prompt.size()),
                 std::move(request.sampling), std::move(sink));
}

void LiveRequests::enter(RequestId id, size_t prompt_tokens, const LiveRequest& live) {
  all_.emplace(id, live);
  stats_.change([](EngineStats& stats) { ++stats.requests_total; });
  if (trace_ != nullptr) trace_->accepted(id, prompt_tokens, executor_.clock().now());
}

std::vector<RequestId> LiveRequests::ids_where(
    const std::function<bool(const LiveRequest&)>& wanted) const {
  std::vector<RequestId> ids;
  for (const auto& [id, live] : all_)
    if (wanted(live)) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

void LiveRequests::deliver(const ipc::StepResult& result, const std::vector<TokenEvent>& events) {
  if (events.empty()) return;
  for (const TokenEvent& event : events) {
    const size_t at = event.index;
    TokenArrival arrival{event.id,        {event.token, 0, {}}, event.stop,  event.cached_tokens,
                         event.scheduled, event.prompt,         event.pooled};
    const auto asked = all_.find(event.id);
    REFRAIN_CHECK(asked != all_.end(), "a token for request {}, which has ended", event.id);
    asked->second.given.add(event.token);
    if (trace_ != nullptr) trace_->token(event.id, executor_.clock().now());
    if (asked->second.num_logprobs >= 0 && at < result.logprobs.size()) {
      arrival.token.logprob = result.logprobs[at];
      if (at + 1 < result.top_offsets.size())
        for (auto i = static_cast<size_t>(result.top_offsets[at]);
             i < static_cast<size_t>(result.top_offsets[at + 1]); ++i)
          arrival.token.top.push_back({result.top_tokens[i], result.top_logprobs[i]});
    }
    outputs_->add(asked->second.output_thread, std::move(arrival));
    if (event.stop == StopCause::kNone) continue;
    gone(event.id, finish_reason(event.stop));
  }
  outputs_->hand_over();
}

void LiveRequests::end(RequestId id, FinishReason reason, std::optional<Error> error) {
  const auto found = all_.find(id);
  REFRAIN_CHECK(found != all_.end(), "request {} ended twice", id);
  outputs_->end(found->second.output_thread, id, reason, std::move(error));
  gone(id, reason);
}

void LiveRequests::end_without_logit(RequestId id) {
  const uint64_t tokens = at(id).given.count();
  log::error("request {} has no finite logit after {} tokens; it is ended", id, tokens);
  end(id, FinishReason::kError,
      Error{ErrorCode::kInternal,
            fmt::format("the model gave no finite logit for this request after {} tokens "
                        "(NaN in what it computed, or every token forbidden); the request "
                        "is ended",
                        tokens),
            {}});
  stats_.change([](EngineStats& stats) { ++stats.requests_without_logit; });
}

void LiveRequests::end_for_grammar(RequestId id) {
  const uint64_t tokens = at(id).given.count();
  log::error("request {}: its grammar is too slow after {} tokens; it is ended", id, tokens);
  end(id, FinishReason::kError,
      Error{ErrorCode::kInvalidArgument,
            fmt::format("the grammar of this answer cannot be followed in time: after {} "
                        "tokens, those of the prompt included, it takes too long to say "
                        "what may come; give a simpler one",
                        tokens),
            kSlowGrammarField});
  stats_.change([](EngineStats& stats) { ++stats.requests_with_slow_grammar; });
}

void LiveRequests::end_all(const Error& error) {
  for (const RequestId id : ids_where([](const LiveRequest&) { return true; }))
    end(id, FinishReason::kError, error);
}

void LiveRequests::gone(RequestId id, FinishReason reason) {
  const auto found = all_.find(id);
  REFRAIN_CHECK(found != all_.end(), "request {} ended twice", id);
  const LiveRequest live = found->second;
  all_.erase(found);
  if (live.deadline != 0) executor_.cancel(live.deadline);
  stats_.ended(reason);
  if (trace_ != nullptr) trace_->ended(id, reason, executor_.clock().now());
  gone_(id, live);
}

}  // namespace refrain
