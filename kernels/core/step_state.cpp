#include "kernels/core/step_state.h"

namespace refrain::kernels {

StepLayout make_step_layout(int max_tokens, int max_reqs, int max_block_updates, int max_history) {
  StepLayout layout;
  layout.max_tokens = max_tokens;
  layout.max_reqs = max_reqs;
  layout.max_block_updates = max_block_updates;
  size_t end = 0;
  auto place = [&end](size_t bytes) {
    const size_t at = end;
    end = (end + bytes + 63) / 64 * 64;
    return at;
  };
  const auto tokens = static_cast<size_t>(max_tokens);
  const auto reqs = static_cast<size_t>(max_reqs);
  const auto updates = static_cast<size_t>(max_block_updates);
  layout.header = place(sizeof(StepHeader));
  layout.token_ids = place(tokens * sizeof(int32_t));
  layout.row_slot = place(reqs * sizeof(int32_t));
  layout.row_query_len = place(reqs * sizeof(int32_t));
  layout.row_context = place(reqs * sizeof(int32_t));
  layout.row_flags = place(reqs);
  layout.update_slot = place(updates * sizeof(int32_t));
  layout.update_index = place(updates * sizeof(int32_t));
  layout.update_block = place(updates * sizeof(int32_t));
  layout.params_slot = place(reqs * sizeof(int32_t));
  layout.params = place(reqs * sizeof(SlotParams));
  layout.max_history = max_history;
  if (max_history > 0) {
    layout.history_part = place(2 * reqs * sizeof(int32_t));
    layout.row_next = place(reqs * sizeof(int32_t));
    layout.history = place(static_cast<size_t>(max_history) * sizeof(int32_t));
  }
  layout.total = end;
  return layout;
}

}  // namespace refrain::kernels
