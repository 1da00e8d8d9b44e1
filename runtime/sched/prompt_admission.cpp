#include "runtime/sched/prompt_admission.h"

#include <algorithm>
#include <span>

namespace refrain {

bool PromptAdmission::is_long(const Sequence& sequence) const {
  const auto cached = static_cast<int32_t>(sequence.prefix.hits) * options_.block_size;
  const int32_t step = std::min(options_.max_num_batched_tokens, step_.chunk_limit());
  const int32_t threshold = options_.long_prefill_token_threshold;
  return sequence.length() - cached > (threshold > 0 ? threshold : step);
}

// Whether a running request is about to publish the block that `sequence` would compute first: who
// comes with the same beginning waits for it, and begins where it is.
bool PromptAdmission::computed_by_another(const Sequence& sequence) const {
  const PrefixCache::Match& match = sequence.prefix;
  const auto size = static_cast<size_t>(options_.block_size);
  const size_t begin = match.hits * size;
  if (static_cast<int64_t>(begin + size) > sequence.max_prefix_tokens()) return false;
  const BlockPools& pools = resources_.pools();
  const std::span<const TokenId> wanted = pools.block_tokens(sequence.tokens, match.hits);
  return std::ranges::any_of(queues_.running(), [&](const Sequence* other) {
    return other->chain == match.last() &&
           static_cast<size_t>(other->blocks_published) == match.hits &&
           other->block_space == sequence.block_space &&
           std::ranges::equal(wanted, pools.block_tokens(other->tokens, match.hits));
  });
}

// Where it takes the last slot and others wait, the device has as much as it can do: what goes
// beyond whole tiles costs a tile, and waits for the next step, where others come with it.
int32_t PromptAdmission::in_whole_tiles(int32_t first_row) const {
  if (!resources_.has_one_slot() || queues_.waiting().size() == 1) return first_row;
  const int32_t beyond = (step_.num_tokens() + first_row) % options_.row_tile;
  return beyond < first_row ? first_row - beyond : first_row;
}

int32_t PromptAdmission::admit(Sequence& sequence, int32_t most) {
  // One block is computed in any case. Without it the prompt is not looked at.
  const bool others_run = !queues_.running().empty();
  if (!resources_.pools().may_enter(others_run)) return 0;
  resources_.find_prefix(sequence);
  if (options_.enable_prefix_caching && computed_by_another(sequence)) return 0;
  const int32_t length = sequence.length();
  const auto computed = static_cast<int32_t>(sequence.prefix.hits) * options_.block_size;
  const int32_t least = options_.enable_chunked_prefill ? 1 : length - computed;
  const int32_t room = step_.room_for(sequence, computed, length - computed);
  if (room == 0 || (room < least && !step_.empty())) return 0;
  const bool is_long_prompt = is_long(sequence);
  int32_t first_row =
      std::min(room, is_long_prompt ? std::min(most, step_.long_limit_left()) : most);
  if (first_row == 0) return 0;
  if (options_.enable_chunked_prefill)
    first_row = resources_.pools().up_to_checkpoint(sequence, computed, in_whole_tiles(first_row));
  const int32_t reach = options_.draft_reach();
  if (!resources_.take(sequence, computed, length + reach, computed + first_row + reach,
                       others_run))
    return 0;
  sequence.num_scheduled = sequence.num_computed = computed;
  sequence.long_prompt = is_long_prompt;
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    sequence.cached_tokens = sequence.num_computed;
    sequence.scheduled = step_.now();
    if (sequence.id == kCanaryRequest) return first_row;
    prompt_tokens_ += static_cast<uint64_t>(sequence.prompt_len);
    cached_prompt_tokens_ += static_cast<uint64_t>(sequence.cached_tokens);
  }
  return first_row;
}

}  // namespace refrain
