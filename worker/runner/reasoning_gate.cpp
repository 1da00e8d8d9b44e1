#include "worker/runner/reasoning_gate.h"

#include <algorithm>

namespace refrain::worker {

ReasoningGate::ReasoningGate(const ipc::SlotSetup& setup) : begin_(setup.reasoning_begin) {
  bool open = false;
  for (const TokenId token : setup.reasoning_end) {
    if (token < 0) {
      open = false;
      continue;
    }
    if (!open) end_.emplace_back();
    open = true;
    end_.back().push_back(token);
  }
  if (begin_ >= 0) at_ = end_.size();  // until it comes
}

bool ReasoningGate::take(TokenId token) {
  if (begin_ >= 0 && token == begin_) {
    begin_ = -1;
    at_ = 0;
    return true;
  }
  begin_ = -1;
  if (!reasons()) return false;
  const std::vector<TokenId>& end = end_[at_];
  last_.push_back(token);
  if (last_.size() > end.size()) last_.erase(last_.begin());
  if (std::ranges::equal(last_, end)) {
    ++at_;
    last_.clear();
  }
  return true;
}

}  // namespace refrain::worker
