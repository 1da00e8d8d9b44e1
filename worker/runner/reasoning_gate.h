#pragma once
// Whether an answer still reasons: its grammar begins behind that. One follower's, on the thread
// that has it.

#include <vector>

#include "ipc/protocol/messages.h"

namespace refrain::worker {

class ReasoningGate {
 public:
  ReasoningGate() = default;
  // Of the slot's set-up, before the first token of its output.
  explicit ReasoningGate(const ipc::SlotSetup& setup);

  bool reasons() const { return at_ < end_.size(); }
  // The next token may be this one, whatever the grammar says: the reasoning begins with it, or
  // there is none. -1: that is decided.
  TokenId may_begin_with() const { return begin_; }
  // False: the token is the grammar's.
  bool take(TokenId token);

 private:
  TokenId begin_ = -1;
  std::vector<std::vector<TokenId>> end_;  // come one after another, others may be between
  size_t at_ = 0;                          // the one that comes next
  std::vector<TokenId> last_;              // tokens since the one before
};

}  // namespace refrain::worker
