#pragma once
// Token sequences that a slot's answer must not have: the last token of one is masked where the
// others stand before it. Device thread.

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/protocol/messages.h"

namespace refrain::worker {

class BadWords {
 public:
  BadWords() = default;
  // Of the slot's set-up: its sequences, and the output that there is already.
  explicit BadWords(const ipc::SlotSetup& setup);
  bool any() const { return !sequences_.empty(); }
  void accept(TokenId token);
  void forbid(std::span<uint32_t> mask) const;  // bit t % 32 of word t / 32: clears what may not be

 private:
  std::vector<std::vector<TokenId>> sequences_;
  size_t longest_ = 0;
  std::vector<TokenId> last_;  // tokens of the output, as many as the longest sequence has
};

}  // namespace refrain::worker
