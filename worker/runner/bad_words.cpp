#include "worker/runner/bad_words.h"

#include <algorithm>

namespace refrain::worker {

BadWords::BadWords(const ipc::SlotSetup& setup) {
  std::vector<TokenId> sequence;
  for (const TokenId token : setup.bad_words) {
    if (token >= 0) {
      sequence.push_back(token);
      continue;
    }
    longest_ = std::max(longest_, sequence.size());
    if (!sequence.empty()) sequences_.push_back(std::move(sequence));
    sequence.clear();
  }
  for (const TokenId token : setup.output_tokens) accept(token);
}

void BadWords::accept(TokenId token) {
  if (!any()) return;
  last_.push_back(token);
  if (last_.size() > longest_) last_.erase(last_.begin());
}

void BadWords::forbid(std::span<uint32_t> mask) const {
  for (const std::vector<TokenId>& sequence : sequences_) {
    const size_t before = sequence.size() - 1;
    if (before > last_.size()) continue;
    const bool stands = std::equal(sequence.begin(), sequence.end() - 1,
                                   last_.end() - static_cast<std::ptrdiff_t>(before));
    if (!stands) continue;
    const auto token = static_cast<size_t>(sequence.back());
    mask[token / 32] &= ~(1u << (token % 32));
  }
}

}  // namespace refrain::worker
