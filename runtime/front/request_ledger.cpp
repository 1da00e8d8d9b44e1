#include "runtime/front/request_ledger.h"

#include <algorithm>
#include <utility>

namespace refrain::front {

void RequestLedger::add(RequestId id, LedgerEntry entry) { entries_.emplace(id, std::move(entry)); }

LedgerEntry* RequestLedger::find(RequestId id) {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second;
}

std::vector<RequestId> RequestLedger::ids() const {
  std::vector<RequestId> ids;
  ids.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

std::vector<RequestId> RequestLedger::lose_coordinator() {
  std::vector<RequestId> too_often;
  for (auto& [id, entry] : entries_)
    if (std::exchange(entry.sent, false) && ++entry.deaths == kMostDeaths) too_often.push_back(id);
  std::ranges::sort(too_often);
  return too_often;
}

void RequestLedger::begin_session() {
  for (auto& [id, entry] : entries_) entry.sent = false;
}

Submit RequestLedger::submission(RequestId id, LedgerEntry& entry, TimePoint now) {
  Submit submit{id, entry.request, entry.adapter};
  GenerateRequest& request = submit.request;
  const Duration past = now - entry.came;
  const auto left = [past](Duration limit) { return std::max(limit - past, Duration(1)); };
  if (request.timeout) request.timeout = left(*request.timeout);
  if (request.max_queue_wait) request.max_queue_wait = left(*request.max_queue_wait);
  request.admitted = true;
  if (entry.sent_once) request.begun = BegunAnswer{entry.given, entry.cached_tokens};
  // What is told of the prompt was told with the first token.
  if (!entry.given.empty()) request.sampling.prompt_logprobs = -1;
  entry.sent = entry.sent_once = true;
  return submit;
}

RequestLedger::Overdue RequestLedger::overdue(TimePoint now, Duration max_queue_wait) const {
  Overdue overdue;
  for (const auto& [id, entry] : entries_) {
    const Duration past = now - entry.came;
    Duration wait = max_queue_wait == Duration::zero() ? Duration::max() : max_queue_wait;
    if (entry.request.max_queue_wait) wait = std::min(wait, *entry.request.max_queue_wait);
    if (entry.request.timeout && past >= *entry.request.timeout) {
      overdue.late.push_back(id);
    } else if (!entry.sent_once && past >= wait) {
      overdue.unheard.push_back(id);
    }
  }
  return overdue;
}

}  // namespace refrain::front
