#pragma once
// The requests that have not ended, each with the tokens that its client was given: all that it
// takes to submit it again when the coordinator that had it is gone. Pure; owned by the
// front, on its executor.

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/front/messages.h"

namespace refrain::front {

struct LedgerEntry {
  GenerateRequest request;  // as it came, but for its seed, which is set
  std::string adapter;      // its name; empty: none
  TimePoint came{};
  std::vector<TokenId> given;
  int64_t cached_tokens = 0;
  bool sent = false;       // in this session
  bool sent_once = false;  // in any
  int deaths = 0;          // of coordinators that had it
};

class RequestLedger {
 public:
  // It would be in flight at every death there is, if it were their cause.
  static constexpr int kMostDeaths = 3;

  void add(RequestId id, LedgerEntry entry);
  LedgerEntry* find(RequestId id);  // null: it has ended
  void remove(RequestId id) { entries_.erase(id); }
  size_t size() const { return entries_.size(); }
  std::vector<RequestId> ids() const;  // the oldest first

  // The coordinator has died: those that have been in flight at too many deaths.
  std::vector<RequestId> lose_coordinator();
  // Another session has begun, in which none was sent.
  void begin_session();
  // As it is submitted now: with what is left of its times.
  static Submit submission(RequestId id, LedgerEntry& entry, TimePoint now);

  // Those whose own time is over; and those that were never sent and have waited too long.
  struct Overdue {
    std::vector<RequestId> late, unheard;
  };
  Overdue overdue(TimePoint now, Duration max_queue_wait) const;

 private:
  std::unordered_map<RequestId, LedgerEntry> entries_;
};

}  // namespace refrain::front
