#include "runtime/sched/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

void clear(ipc::Step& step) {
  ipc::Rows& rows = step.runs.front().rows;
  rows.slot.clear();
  rows.num_tokens.clear();
  rows.computed.clear();
  rows.flags.clear();
  rows.token_ids.clear();
  rows.next_tokens.clear();
  for (ipc::BlockUpdates& group : step.blocks) {
    group.slot.clear();
    group.index.clear();
    group.block.clear();
  }
  step.runs.front().part = 0;
  step.runs.front().parts = 1;
  step.setups.clear();
  step.has_lora = false;
  step.placements.clear();
}

ipc::ForwardMode forward_mode(const ipc::Rows& rows) {
  bool decodes = false, drafts = false, chunks = false;
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const bool one = rows.num_tokens[row] == 1 && rows.computed[row] != 0;
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    (one ? decodes : verifies ? drafts : chunks) = true;
  }
  if ((decodes || drafts) && chunks) return ipc::ForwardMode::kMixed;
  if (drafts) return ipc::ForwardMode::kTargetVerify;
  return decodes ? ipc::ForwardMode::kDecode : ipc::ForwardMode::kExtend;
}

constexpr uint8_t kEagerOnly = 1 << static_cast<int>(ipc::RuntimeMode::kNone), kAnyMode = 7;

constexpr int32_t kBeforeAll = std::numeric_limits<int32_t>::min();

int32_t priority_of(const Sequence* sequence) { return sequence->params.priority; }

// Of any n steps n * rate, evenly spread; a function of the number alone.
bool is_audited(StepId step, double rate) {
  return std::floor(static_cast<double>(step) * rate) >
         std::floor(static_cast<double>(step - 1) * rate);
}

}  // namespace

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)),
      cascade_keys_(least_cascade_keys()),
      pools_({options_.groups, options_.block_size, options_.max_num_batched_tokens + draft_reach(),
              options_.enable_prefix_caching, options_.watermark, options_.draft_head ? 1 : 0}),
      leases_(pools_),
      arrivals_(pools_, options_.num_ranks, options_.transfer_timeout),
      adapters_(options_.max_loras) {
  REFRAIN_CHECK(options_.max_num_seqs > 0 && options_.max_num_batched_tokens > 0 &&
                    options_.max_model_len > 1 && options_.block_size > 0,
                "scheduler limits must be positive");
  plan_.step().runs.resize(options_.draft_model ? 2 : 1);
  if (options_.draft_model)
    plan_.step().runs[1] = {ipc::ProgramId::kDraftModel, ipc::ForwardMode::kDraftExtend, {}};
  plan_.step().blocks.resize(options_.groups.size());
  for (SlotId slot = options_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Status Scheduler::check(const Sequence& sequence, const TokenDigest& given) const {
  const int64_t prompt_len = sequence.prompt_len;
  if (prompt_len == 0)
    return fail_field("prompt", "the prompt has no tokens; at least one is needed");
  if (digest_of(sequence.tokens) != given)
    return fail(ErrorCode::kInternal,
                "request {} holds {} tokens that are not the {} its client has; it cannot go on",
                sequence.id, sequence.tokens.size(), given.count());
  if (prompt_len >= options_.max_model_len)
    return fail_field("prompt",
                      "the prompt has {} tokens; with --max-model-len {} at most {} leave room for "
                      "an answer",
                      prompt_len, options_.max_model_len, options_.max_model_len - 1);
  if (!options_.enable_chunked_prefill && prompt_len > options_.max_num_batched_tokens)
    return fail_field("prompt",
                      "the prompt has {} tokens; without chunked prefill at most "
                      "--max-num-batched-tokens ({}) can run",
                      prompt_len, options_.max_num_batched_tokens);
  if (const size_t bytes = ipc::bytes_of(sequence.params.setup); bytes > largest_part())
    return fail_field("allowed_token_ids",
                      "the request's sampling fields (logit_bias, allowed_token_ids, "
                      "stop_token_ids) take {} bytes of a message to the workers; at most {} fit",
                      bytes, largest_part());
  const int64_t beyond = 2 * int64_t{options_.num_drafts} + draft_reach();
  const int64_t longest =
      beyond + std::min<int64_t>(options_.max_model_len,
                                 prompt_len + std::max<int64_t>(sequence.params.max_tokens, 1));
  if (const int64_t most = pools_.most_tokens(longest); most < longest)
    return fail_field("max_tokens",
                      "prompt and max_tokens need {} tokens of KV cache and the whole cache holds "
                      "{}; shorten the prompt or lower max_tokens",
                      longest, most);
  return {};
}

Status Scheduler::add(std::unique_ptr<Sequence> sequence, const TokenDigest& given) {
  REFRAIN_RETURN_IF_ERROR(check(*sequence, given));
  const RequestId id = sequence->id;
  if (id == kCanaryRequest) sequence->params.priority = kBeforeAll;
  const auto [entry, added] = sequences_.emplace(id, std::move(sequence));
  REFRAIN_CHECK(added, "request {} is in the scheduler already", id);
  Sequence* const last = entry->second.get();
  if (last->source) ++sourced_;
  waiting_.insert(std::ranges::upper_bound(waiting_, priority_of(last), {}, priority_of), last);
  return {};
}

bool Scheduler::cancel(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->state == SequenceState::kFinished) return false;
  if (found->second->state == SequenceState::kReceiving) {
    arrivals_.abandon(*found->second);
    take_out(*found->second);
    return true;
  }
  finish(*found->second);
  settle(*found->second);
  return true;
}

const Sequence* Scheduler::find(RequestId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->state == SequenceState::kFinished) return nullptr;
  return found->second.get();
}

size_t Scheduler::requests_in_flight() const {
  return static_cast<size_t>(std::ranges::count_if(
      sequences_, [](const auto& entry) { return entry.second->in_flight > 0; }));
}

const StepPlan* Scheduler::schedule(TimePoint now) {
  now_ = now;
  clear(plan_.step());
  building_.rows.clear();
  if (building_.rows.capacity() == 0 && !spare_rows_.empty()) {
    building_.rows = std::move(spare_rows_.back());
    spare_rows_.pop_back();
  }
  short_of_blocks_ = stalled_ = adapter_waits_ = prebuilt_rows_ = false;
  scores_left_ = ipc::kMaxPromptScores;
  step_bytes_ = ipc::kEmptyStepBytes + plan_.step().runs.size() * ipc::kMinRunBytes +
                options_.groups.size() * ipc::kMinBlockUpdatesBytes +
                static_cast<size_t>(options_.max_loras) * ipc::kAdapterPlacementBytes;
  query_len_ = query_len();
  history_left_ = options_.num_drafts > 0 ? options_.max_num_batched_tokens : 0;
  bool takes_part = schedule_part();
  if (!takes_part) {
    schedule_decodes();
    num_decodes_ = static_cast<int32_t>(rows().token_ids.size());
    if (split_.sequence == nullptr) {
      schedule_prompts();
    } else if (building_.rows
                   .empty()) {  // who was to decode lacks blocks, and perhaps was put back
      add_part(*split_.sequence, split_.num_tokens);
      takes_part = true;
    }
  }
  if (building_.rows.empty()) return nullptr;
  part_before_ = takes_part;
  ipc::Step& step = plan_.step();
  step.step = next_step_++;
  step.placements.insert(step.placements.begin(), placements_.begin(), placements_.end());
  placements_.clear();
  // Steps that score prompts run without graphs (CG-13) and without an audit.
  const bool scores = scores_left_ < ipc::kMaxPromptScores;
  step.allowed_modes = scores ? kEagerOnly : kAnyMode;
  const bool part = step.runs.front().parts > 1;
  step.audit = !scores && !part && is_audited(step.step, options_.audit_rate);
  step.runs.front().mode = forward_mode(rows());
  if (prebuilt_rows_ && step.runs.front().mode == ipc::ForwardMode::kDecode)
    step.runs.front().mode = ipc::ForwardMode::kPrebuilt;
  set_cascade(step);
  step.has_lora = options_.max_loras > 0 && std::ranges::any_of(building_.rows, [](const Row& row) {
                    return row.sequence->adapter_place >= 0;
                  });
  building_.step = step.step;
  building_.query_len = query_len_;
  in_flight_.push_back(std::move(building_));
  building_ = {};
  return &plan_;
}

void Scheduler::schedule_prompts() {
  if (options_.enable_chunked_prefill) schedule_short_prompts();
  schedule_chunks();
  if (!short_of_blocks_) schedule_admissions();
}

// Of the tokens after the decodes.
int32_t Scheduler::chunk_budget_left() const {
  if (!options_.enable_chunked_prefill) return budget_left();
  const auto used = static_cast<int32_t>(rows().token_ids.size()) - num_decodes_;
  return std::min(budget_left(), chunk_limit_ - used);
}

void Scheduler::schedule_decodes() {
  bool left = false;
  chunks_left_ = true;
  // Preemption takes from the end, so that an index stays good while it is below the size.
  for (size_t i = 0; i < running_.size() && budget_left() > 0; ++i) {
    Sequence& sequence = *running_[i];
    left = left || chunk_left(sequence);
    if (chunk_left(sequence) || sequence.ends_in_flight(options_.max_model_len)) continue;
    if (verifies(sequence)) {
      if (!schedule_verification(sequence)) return;
      continue;
    }
    if (room_for(sequence, sequence.num_scheduled, 1) == 0) return;
    if (!ensure_blocks(sequence, sequence.num_scheduled + 1 + draft_reach())) continue;
    if (sequence.sampled && sequence.setup_sent) {
      add_decode(sequence);
    } else {
      add_row(sequence, 1);
    }
  }
  chunks_left_ = left;
}

void Scheduler::schedule_chunks() {
  if (!chunks_left_) return;
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption takes from the end
    Sequence& sequence = *running_[i];
    if (!chunk_left(sequence) || sequence.planned == next_step_) continue;
    if (chunk_budget_left() == 0) return;
    if (add_chunk(sequence, chunk_budget_left()) == 0) return;
  }
}

// A row of as much of the prompt as there is room for, at most `most` tokens; how many it has.
int32_t Scheduler::add_chunk(Sequence& sequence, int32_t most) {
  const int32_t computed = sequence.num_scheduled;
  const int32_t room = pools_.up_to_checkpoint(
      sequence, computed,
      room_for(sequence, computed, std::min(sequence.length() - computed, most)));
  if (room == 0 || !ensure_blocks(sequence, computed + room + draft_reach())) return 0;
  add_row(sequence, room);
  return room;
}

void Scheduler::schedule_admissions() {
  for (auto at = waiting_.begin();
       at != waiting_.end() && !free_slots_.empty() && chunk_budget_left() > 0;) {
    Sequence& sequence = **at;
    // A preempted one waits until its last row in flight has told its token and freed its blocks.
    if (sequence.in_flight > 0) return;
    if (!adapter_may_enter(sequence)) {
      ++at;
      continue;
    }
    if (sequence.source) {
      if (!receive(sequence)) return;
      at = waiting_.erase(at);
      const bool all_cached = sequence.state == SequenceState::kRunning;
      if (all_cached && room_for(sequence, sequence.num_scheduled, 1) > 0) add_row(sequence, 1);
      continue;
    }
    const int32_t first_row = admit(sequence, chunk_budget_left());
    if (first_row == 0) return;
    at = waiting_.erase(at);
    run(sequence);
    add_row(sequence, first_row);
    // Where the step's bytes end its row, nobody smaller comes in behind it.
    const bool cut = sequence.num_scheduled < sequence.length();
    if (cut && room_for(sequence, sequence.num_scheduled, 1) == 0) return;
  }
}

// Behind those of its priority: the last one is who makes room.
void Scheduler::run(Sequence& sequence) {
  running_.insert(std::ranges::upper_bound(running_, priority_of(&sequence), {}, priority_of),
                  &sequence);
}

// Whether a running request is about to publish the block that `sequence` would compute first: who
// comes with the same beginning waits for it, and begins where it is.
bool Scheduler::computed_by_another(const Sequence& sequence) const {
  const PrefixCache::Match& match = sequence.prefix;
  const auto size = static_cast<size_t>(options_.block_size);
  const size_t begin = match.hits * size;
  if (static_cast<int64_t>(begin + size) > sequence.max_prefix_tokens()) return false;
  const std::span<const TokenId> wanted = pools_.block_tokens(sequence.tokens, match.hits);
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    return other->chain == match.last() &&
           static_cast<size_t>(other->blocks_published) == match.hits &&
           other->block_space == sequence.block_space &&
           std::ranges::equal(wanted, pools_.block_tokens(other->tokens, match.hits));
  });
}

void Scheduler::find_prefix(Sequence& sequence) {
  const auto sendable =
      static_cast<int64_t>(largest_part() / ipc::kBlockUpdateBytes / pools_.num_paged());
  pools_.find_prefix(sequence,
                     std::min(sequence.max_prefix_tokens(), sendable * options_.block_size));
}

// Gives a waiting sequence its slot and the blocks of all its known tokens, so that only decoding
// ever asks for more; of a group with a window those of its first row. Returns the tokens of that
// row, at most `most`; 0: it does not fit now.
int32_t Scheduler::admit(Sequence& sequence, int32_t most) {
  // One block is computed in any case. Without it the prompt is not looked at.
  const bool others_run = !running_.empty();
  if (!pools_.may_enter(others_run)) return 0;
  find_prefix(sequence);
  if (options_.enable_prefix_caching && computed_by_another(sequence)) return 0;
  const int32_t length = sequence.length();
  const auto computed = static_cast<int32_t>(sequence.prefix.hits) * options_.block_size;
  const int32_t least = options_.enable_chunked_prefill ? 1 : length - computed;
  const int32_t room = room_for(sequence, computed, length - computed);
  if (room == 0 || (room < least && !building_.rows.empty())) return 0;
  int32_t first_row = std::min(room, most);
  if (options_.enable_chunked_prefill)
    first_row = pools_.up_to_checkpoint(sequence, computed, first_row);
  const bool is_long_prompt = is_long(sequence);
  if (!pools_.enter(sequence, computed, length + draft_reach(),
                    computed + first_row + draft_reach(), others_run))
    return 0;

  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  if (sequence.params.adapter != 0)
    sequence.adapter_place = adapters_.enter(sequence.params.adapter, plan_.step().placements);
  sequence.state = SequenceState::kRunning;
  sequence.num_scheduled = sequence.num_computed = computed;
  sequence.long_prompt = is_long_prompt;
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    sequence.cached_tokens = sequence.num_computed;
    sequence.scheduled = now_;
    if (sequence.id == kCanaryRequest) return first_row;
    stats_.prompt_tokens += static_cast<uint64_t>(sequence.prompt_len);
    stats_.cached_prompt_tokens += static_cast<uint64_t>(sequence.cached_tokens);
  }
  return first_row;
}

// Short of blocks, the last running sequence makes room:
// at once, or when the last in-flight row of it is in; until then false.
bool Scheduler::make_room(Sequence& sequence, int32_t tokens) {
  while (stalled_ ? tokens > sequence.tokens_held : !pools_.ensure(sequence, tokens)) {
    short_of_blocks_ = true;
    // Who comes later takes none of what is too little for this one. Alone, it lacks what its own
    // steps in flight give back.
    stalled_ = stalled_ || holding_ > 0 || running_.size() == 1;
    if (stalled_) return false;
    const bool itself = running_.back() == &sequence;
    preempt_last();
    stalled_ = holding_ > 0;
    if (itself || stalled_) return false;
  }
  return true;
}

void Scheduler::preempt_last() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  if (split_.sequence == &victim) split_ = {};
  victim.state = SequenceState::kWaiting;
  waiting_.insert(std::ranges::lower_bound(waiting_, priority_of(&victim), {}, priority_of),
                  &victim);
  ++stats_.preemptions;
  ++holding_;
  settle(victim);
}

}  // namespace refrain
