#pragma once
// What the host knows of the requests in the slots, from their setups. One for all execution
// contexts of a worker; device thread.

#include <cstdint>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/ids.h"

namespace refrain::worker {

// min_tokens are kept by a mask without the end tokens, replaced when they are made.
inline bool has_token_mask(const ipc::SlotSetup& setup) {
  return setup.has_allowed_tokens || setup.min_tokens > 0;
}

struct SlotRequest {
  int32_t num_logprobs = -1;    // that it asked for; -1: none
  int32_t adapter = -1;         // place of its LoRA adapter; -1: none
  bool plainly_greedy = false;  // its token is that of the greatest logit, nothing else was asked
  bool uses_history = false;    // penalties are on: the slot counts the tokens it gave
  // End tokens are masked until its row samples this position; 0: they are not.
  int64_t end_masked_until = 0;
  std::vector<uint32_t> then_allowed;  // [mask_words] from then on
  // What its tokens may be besides what its grammar says; empty: all.
  std::vector<uint32_t> grammar_bounds;
};

class SlotTable {
 public:
  explicit SlotTable(int32_t num_slots) : requests_(static_cast<size_t>(num_slots)) {}
  SlotRequest& at(SlotId slot) { return requests_[static_cast<size_t>(slot)]; }
  const SlotRequest& at(SlotId slot) const { return requests_[static_cast<size_t>(slot)]; }

 private:
  std::vector<SlotRequest> requests_;
};

}  // namespace refrain::worker
