#include "runtime/sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr int32_t kBeforeAll = std::numeric_limits<int32_t>::min();

}  // namespace

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)),
      resources_(options_),
      queues_(resources_),
      step_(options_, resources_.pools()),
      transfers_(options_, queues_, resources_),
      preemption_(queues_, resources_.pools(), transfers_),
      admission_(options_, queues_, resources_, step_),
      decodes_(options_, queues_, step_, preemption_),
      prompts_(options_, queues_, resources_, step_, preemption_, admission_, transfers_),
      split_(options_, queues_, resources_, step_, admission_),
      results_(options_, queues_, resources_.pools(), transfers_) {
  REFRAIN_CHECK(options_.max_num_seqs > 0 && options_.max_num_batched_tokens > 0 &&
                    options_.max_model_len > 1 && options_.block_size > 0,
                "scheduler limits must be positive");
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
  const size_t room = options_.largest_part();
  if (const size_t bytes = ipc::bytes_of(sequence.params.setup); bytes > room)
    return fail_field("allowed_token_ids",
                      "the request's sampling fields (logit_bias, allowed_token_ids, "
                      "stop_token_ids) take {} bytes of a message to the workers; at most {} fit",
                      bytes, room);
  const int64_t beyond = 2 * int64_t{options_.num_drafts} + options_.draft_reach();
  const int64_t longest =
      beyond + std::min<int64_t>(options_.max_model_len,
                                 prompt_len + std::max<int64_t>(sequence.params.max_tokens, 1));
  if (const int64_t most = resources_.pools().most_tokens(longest); most < longest)
    return fail_field("max_tokens",
                      "prompt and max_tokens need {} tokens of KV cache and the whole cache holds "
                      "{}; shorten the prompt or lower max_tokens",
                      longest, most);
  return {};
}

Status Scheduler::add(std::unique_ptr<Sequence> sequence, const TokenDigest& given) {
  if (Status checked = check(*sequence, given); !checked) {
    transfers_.forget(sequence->id);
    return checked;
  }
  if (sequence->id == kCanaryRequest) sequence->params.priority = kBeforeAll;
  transfers_.comes(*sequence);
  resources_.adapters().arrived(sequence->id);
  queues_.add(std::move(sequence));
  return {};
}

bool Scheduler::cancel(RequestId id) {
  transfers_.forget(id);  // one that is expected need not have come
  Sequence* const sequence = queues_.find(id);
  if (sequence == nullptr) return false;
  if (sequence->state == SequenceState::kReceiving) {
    transfers_.cancel(*sequence);
  } else {
    queues_.finish(*sequence);
    queues_.settle(*sequence);
  }
  return true;
}

const StepPlan* Scheduler::schedule(TimePoint now) {
  now_ = now;
  step_.begin(now, decodes_.query_len());
  preemption_.begin();
  resources_.adapters().begin();
  bool part = split_.on() && split_.plan(decodes_.any());
  if (!part) {
    const bool chunks_left = decodes_.plan();
    step_.begin_chunks();
    if (!split_.under_way()) {
      prompts_.plan(chunks_left);
    } else if (step_.empty()) {  // who was to decode lacks blocks, and perhaps was put back
      split_.add_next();
      part = true;
    }
  }
  if (step_.empty()) return nullptr;
  split_.planned(part);
  PlannedStep planned = step_.finish(resources_.take_placements());
  // Layers of a step in parts pass in several steps, and an audited one writes its blocks twice.
  const ipc::Step& step = step_.plan().step();
  if (options_.publish_layers && step.runs.front().parts == 1 && !step.audit)
    transfers_.promise(planned);
  results_.sent(std::move(planned));
  return &step_.plan();
}

const StepPlan& Scheduler::idle_step() {
  step_.begin(now_, decodes_.query_len());
  results_.sent(step_.finish({}));
  return step_.plan();
}

Status Scheduler::update(const ipc::StepResult& result, std::vector<TokenEvent>& events) {
  REFRAIN_RETURN_IF_ERROR(results_.check(result));
  PlannedStep done = results_.take(result, now_, events);
  decodes_.answered(done, result.tokens.size());
  step_.recycle(std::move(done.rows));
  return {};
}

std::vector<std::unique_ptr<Sequence>> Scheduler::release_all() {
  auto between = transfers_.release_all();
  std::vector<std::unique_ptr<Sequence>> left = queues_.release_all();
  for (auto& sequence : between) left.push_back(std::move(sequence));
  for (auto& sequence : left) sequence->lose_group();
  results_.forget_all();
  return left;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.waiting = num_waiting();
  stats.running = queues_.running().size();
  stats.steps_in_flight = steps_in_flight();
  stats.preemptions = preemption_.count();
  stats.cascade_steps = step_.cascade_steps();
  stats.prompt_tokens = admission_.prompt_tokens();
  stats.cached_prompt_tokens = admission_.cached_prompt_tokens();
  stats.generated_tokens = results_.generated_tokens();
  stats.drafts = results_.drafts();
  stats.leases = transfers_.leases();
  stats.leases_expired = transfers_.leases_expired();
  stats.transfers = transfers_.counts();
  stats.blocks_total = resources_.pools().num_usable();
  stats.blocks_free = resources_.pools().num_free();
  return stats;
}

}  // namespace refrain
