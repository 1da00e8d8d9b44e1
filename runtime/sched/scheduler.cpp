#include "runtime/sched/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

void clear(ipc::Step& step) {
  step.mode = ipc::ForwardMode::kIdle;
  step.row_slot.clear();
  step.row_num_tokens.clear();
  step.row_computed.clear();
  step.row_flags.clear();
  step.token_ids.clear();
  step.block_slot.clear();
  step.block_index.clear();
  step.block_id.clear();
  step.setups.clear();
}

ipc::ForwardMode forward_mode(const ipc::Step& step) {
  bool decodes = false;
  bool chunks = false;
  for (size_t row = 0; row < step.row_slot.size(); ++row) {
    const bool decode = step.row_num_tokens[row] == 1 && step.row_computed[row] > 0;
    (decode ? decodes : chunks) = true;
  }
  if (decodes && chunks) return ipc::ForwardMode::kMixed;
  return decodes ? ipc::ForwardMode::kDecode : ipc::ForwardMode::kExtend;
}

// Of any n steps n * rate, evenly spread; a function of the number alone.
bool is_audited(StepId step, double rate) {
  return std::floor(static_cast<double>(step) * rate) >
         std::floor(static_cast<double>(step - 1) * rate);
}

}  // namespace

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)),
      blocks_(options_.num_blocks),
      prefix_cache_(blocks_, options_.block_size) {
  REFRAIN_CHECK(options_.max_num_seqs > 0 && options_.max_num_batched_tokens > 0 &&
                    options_.max_model_len > 1 && options_.block_size > 0,
                "scheduler limits must be positive");
  for (SlotId slot = options_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

int32_t Scheduler::blocks_for(int64_t tokens) const {
  return static_cast<int32_t>((tokens + options_.block_size - 1) / options_.block_size);
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
  const int64_t longest = std::min<int64_t>(
      options_.max_model_len, prompt_len + std::max<int64_t>(sequence.params.max_tokens, 1));
  if (blocks_for(longest) > blocks_.num_usable())
    return fail_field("max_tokens",
                      "prompt and max_tokens need {} tokens of KV cache and the whole cache holds "
                      "{}; shorten the prompt or lower max_tokens",
                      longest, blocks_.num_usable() * options_.block_size);
  return {};
}

Status Scheduler::add(std::unique_ptr<Sequence> sequence, const TokenDigest& given) {
  REFRAIN_RETURN_IF_ERROR(check(*sequence, given));
  const RequestId id = sequence->id;
  const auto [entry, added] = sequences_.emplace(id, std::move(sequence));
  REFRAIN_CHECK(added, "request {} is in the scheduler already", id);
  if (id == kCanaryRequest) {
    waiting_.push_front(entry->second.get());
  } else {
    waiting_.push_back(entry->second.get());
  }
  return {};
}

bool Scheduler::cancel(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->state == SequenceState::kFinished) return false;
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

const StepPlan* Scheduler::schedule() {
  clear(plan_.step());
  building_.rows.clear();
  if (building_.rows.capacity() == 0 && !spare_rows_.empty()) {
    building_.rows = std::move(spare_rows_.back());
    spare_rows_.pop_back();
  }
  short_of_blocks_ = false;
  step_bytes_ = ipc::kEmptyStepBytes;
  schedule_decodes();
  num_decodes_ = static_cast<int32_t>(plan_.step().token_ids.size());
  schedule_chunks();
  if (!short_of_blocks_) schedule_admissions();
  if (building_.rows.empty()) return nullptr;
  ipc::Step& step = plan_.step();
  step.step = next_step_++;
  step.audit = is_audited(step.step, options_.audit_rate);
  step.mode = forward_mode(step);
  building_.step = step.step;
  in_flight_.push_back(std::move(building_));
  building_ = {};
  return &plan_;
}

int32_t Scheduler::budget_left() const {
  return options_.max_num_batched_tokens - static_cast<int32_t>(plan_.step().token_ids.size());
}

// Of the tokens after the decodes.
int32_t Scheduler::chunk_budget_left() const {
  if (!options_.enable_chunked_prefill) return budget_left();
  const auto used = static_cast<int32_t>(plan_.step().token_ids.size()) - num_decodes_;
  return std::min(budget_left(), chunk_limit_ - used);
}

// How many of `wanted` tokens after the first `computed` ones the step still has room for, with all
// that they bring along. Each may begin a block.
int32_t Scheduler::room_for(const Sequence& sequence, int32_t computed, int32_t wanted) const {
  size_t bytes = step_bytes_ + ipc::kStepRowBytes;
  if (!sequence.setup_sent) bytes += ipc::bytes_of(sequence.params.setup);
  const int32_t before = blocks_for(computed) - sequence.blocks_sent;
  bytes += static_cast<size_t>(before) * ipc::kBlockUpdateBytes;
  if (bytes >= options_.max_step_bytes) return 0;
  const size_t fit =
      (options_.max_step_bytes - bytes) / (ipc::kStepTokenBytes + ipc::kBlockUpdateBytes);
  const int32_t most = std::min(wanted, budget_left());
  return fit < static_cast<size_t>(most) ? static_cast<int32_t>(fit) : most;
}

// More than one token of the known ones is not yet in the KV cache.
bool Scheduler::chunk_left(const Sequence& sequence) const {
  return sequence.length() - sequence.num_scheduled > 1;
}

void Scheduler::schedule_decodes() {
  // Preemption takes from the end, so that an index stays good while it is below the size.
  for (size_t i = 0; i < running_.size() && budget_left() > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (chunk_left(sequence) || sequence.ends_in_flight(options_.max_model_len)) continue;
    if (room_for(sequence, sequence.num_scheduled, 1) == 0) return;
    if (ensure_blocks(sequence, sequence.num_scheduled + 1)) add_row(sequence, 1);
  }
}

void Scheduler::schedule_chunks() {
  for (Sequence* sequence : running_) {
    if (chunk_budget_left() == 0) return;
    if (!chunk_left(*sequence)) continue;
    const int32_t computed = sequence->num_scheduled;
    const int32_t wanted = std::min(sequence->length() - computed, chunk_budget_left());
    const int32_t room = room_for(*sequence, computed, wanted);
    if (room == 0) return;
    add_row(*sequence, room);
  }
}

void Scheduler::schedule_admissions() {
  while (!waiting_.empty() && !free_slots_.empty() && chunk_budget_left() > 0) {
    Sequence& sequence = *waiting_.front();
    // A preempted one waits until its last row in flight has told its token and freed its blocks.
    if (sequence.in_flight > 0 || !admit(sequence)) return;
    waiting_.pop_front();
    running_.push_back(&sequence);
    const int32_t computed = sequence.num_scheduled;
    const int32_t wanted = std::min(sequence.length() - computed, chunk_budget_left());
    add_row(sequence, room_for(sequence, computed, wanted));
  }
}

// Whether a running request is about to publish the block that `sequence` would compute first: who
// comes with the same beginning waits for it, and begins where it is.
bool Scheduler::computed_by_another(const Sequence& sequence) const {
  const PrefixCache::Match& match = sequence.prefix;
  const auto size = static_cast<size_t>(options_.block_size);
  const size_t begin = match.blocks.size() * size;
  if (static_cast<int64_t>(begin + size) > sequence.max_prefix_tokens()) return false;
  const std::span<const TokenId> wanted(sequence.tokens.data() + begin, size);
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    return other->chain == match.last() &&
           static_cast<size_t>(other->blocks_published) == match.blocks.size() &&
           other->tokens.size() >= begin + size &&
           other->params.cache_salt == sequence.params.cache_salt &&
           std::ranges::equal(wanted, std::span(other->tokens).subspan(begin, size));
  });
}

// Gives a waiting sequence its slot and the blocks of all its known tokens, so that only decoding
// ever asks for more. False: it does not fit now.
bool Scheduler::admit(Sequence& sequence) {
  // One block is computed in any case. Without it the prompt is not looked at.
  const auto reserve =
      running_.empty()
          ? int64_t{0}
          : std::max<int64_t>(1, static_cast<int64_t>(options_.watermark *
                                                      static_cast<double>(blocks_.num_usable())));
  if (blocks_.num_free() < 1 + reserve) return false;
  PrefixCache::Match& match = sequence.prefix;
  if (options_.enable_prefix_caching) {
    const auto sendable = static_cast<int64_t>(largest_part() / ipc::kBlockUpdateBytes);
    prefix_cache_.extend(sequence.params.cache_salt, sequence.tokens,
                         std::min(sequence.max_prefix_tokens(), sendable * options_.block_size),
                         match);
    if (computed_by_another(sequence)) return false;
  }
  const auto hits = static_cast<int32_t>(match.blocks.size());
  const int32_t length = sequence.length();
  const int32_t needed = blocks_for(length) - hits;
  const auto hits_free = std::ranges::count_if(
      match.blocks, [this](BlockId block) { return blocks_.ref_count(block) == 0; });
  if (blocks_.num_free() - hits_free < needed + reserve) return false;
  const int32_t computed = hits * options_.block_size;
  const int32_t least = options_.enable_chunked_prefill ? 1 : length - computed;
  const int32_t room = room_for(sequence, computed, length - computed);
  if (room == 0 || (room < least && !building_.rows.empty())) return false;

  for (const BlockId block : match.blocks) sequence.blocks.push_back(blocks_.share(block));
  for (int32_t i = 0; i < needed; ++i) sequence.blocks.push_back(*blocks_.allocate());
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.state = SequenceState::kRunning;
  sequence.num_scheduled = sequence.num_computed = computed;
  sequence.blocks_published = hits;
  sequence.chain = match.last();
  match = {};
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    sequence.cached_tokens = sequence.num_computed;
    if (sequence.id == kCanaryRequest) return true;
    stats_.prompt_tokens += static_cast<uint64_t>(sequence.prompt_len);
    stats_.cached_prompt_tokens += static_cast<uint64_t>(sequence.cached_tokens);
  }
  return true;
}

// Blocks for `tokens` tokens in all. Short of blocks, the youngest running sequence makes room:
// at once, or when the last in-flight row of it is in; until then false.
bool Scheduler::ensure_blocks(Sequence& sequence, int64_t tokens) {
  const auto needed = static_cast<size_t>(blocks_for(tokens));
  while (sequence.blocks.size() < needed) {
    if (std::optional<BlockRef> block = blocks_.allocate()) {
      sequence.blocks.push_back(std::move(*block));
      continue;
    }
    short_of_blocks_ = true;
    if (holding_ > 0) return false;
    const bool itself = running_.back() == &sequence;
    preempt_youngest();
    if (itself || holding_ > 0) return false;
  }
  return true;
}

void Scheduler::preempt_youngest() {
  Sequence& victim = *running_.back();
  running_.pop_back();
  victim.state = SequenceState::kWaiting;
  waiting_.push_front(&victim);
  ++stats_.preemptions;
  ++holding_;
  settle(victim);
}

void Scheduler::add_row(Sequence& sequence, int32_t num_tokens) {
  ipc::Step& step = plan_.step();
  if (!sequence.setup_sent) {
    sequence.setup_sent = true;
    step.setups.push_back(sequence.params.setup);
    step.setups.back().slot = sequence.slot;
    step_bytes_ += ipc::bytes_of(sequence.params.setup);
  }
  const int32_t from = sequence.num_scheduled;
  const int32_t to = from + num_tokens;
  const bool samples = to == sequence.length();
  step.row_slot.push_back(sequence.slot);
  step.row_num_tokens.push_back(num_tokens);
  step.row_computed.push_back(from);
  step.row_flags.push_back(static_cast<uint8_t>(samples ? ipc::kSamples : 0));
  // What the slot has sampled is not sent back to it: the device would count it twice.
  const auto known = sequence.sampled ? from : static_cast<int32_t>(sequence.tokens.size());
  const int32_t known_to = std::min(to, known);
  if (from < known_to)
    step.token_ids.insert(step.token_ids.end(), sequence.tokens.begin() + from,
                          sequence.tokens.begin() + known_to);
  REFRAIN_CHECK(to - std::max(from, known) <= 1, "a row may take one token from the device");
  if (to > known) step.token_ids.push_back(kTokenOnDevice);
  sequence.num_scheduled = to;
  add_block_updates(sequence);
  step_bytes_ += ipc::kStepRowBytes + static_cast<size_t>(num_tokens) * ipc::kStepTokenBytes;
  if (samples) ++sequence.pending;
  sequence.sampled = samples;
  ++sequence.in_flight;
  building_.rows.push_back({&sequence, to, samples});
}

void Scheduler::add_block_updates(Sequence& sequence) {
  ipc::Step& step = plan_.step();
  const int32_t needed = blocks_for(sequence.num_scheduled);
  for (int32_t& i = sequence.blocks_sent; i < needed; ++i) {
    step.block_slot.push_back(sequence.slot);
    step.block_index.push_back(i);
    step.block_id.push_back(sequence.blocks[static_cast<size_t>(i)].id());
    step_bytes_ += ipc::kBlockUpdateBytes;
  }
}

}  // namespace refrain
