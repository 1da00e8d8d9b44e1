// The part of EngineCore that survives its workers: requests of a lost group go back to the queue
// and on with the next one, and a canary shows that idle workers answer.

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"

namespace refrain {
namespace {

SchedulerOptions scheduler_options(const EngineConfig& config, const ModelConfig& model,
                                   int64_t num_kv_blocks) {
  SchedulerOptions options;
  options.max_num_seqs = config.worker.max_num_seqs;
  options.max_num_batched_tokens = config.worker.max_num_batched_tokens;
  options.max_model_len = config.worker.max_model_len;
  options.block_size = config.worker.block_size;
  options.num_blocks = num_kv_blocks;
  options.enable_prefix_caching = config.enable_prefix_caching;
  options.enable_chunked_prefill = config.enable_chunked_prefill;
  options.eos_token_ids = model.eos_token_ids;
  return options;
}

}  // namespace

// Block tables, prefix cache and slots begin empty, as the new workers' memory does.
void EngineCore::on_ready(int64_t num_kv_blocks) {
  scheduler_ = std::make_unique<Scheduler>(scheduler_options(config_, model_, num_kv_blocks));
  if (!trials_.on) queue_to_scheduler();
  last_answer_ = executor_->clock().now();
  stats_.answered(last_answer_);
  admission_.in_service(last_answer_);
  watch_queue();
  // The group is ready when this handler has returned.
  executor_->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump();
  });
  watch_idle();
  publish_counts();
}

void EngineCore::on_lost(const Error& error, bool for_good) {
  executor_->cancel(idle_timer_);
  admission_.out_of_service(executor_->clock().now());
  if (for_good) refuse_from_now_on(error);
  if (scheduler_) take_back(error);
  if (for_good) fail_all(error);
  watch_queue();
  publish_counts();
}

// What ran waits for the next group with the tokens it has. Steps without an answer are computed
// again, and what the lost workers still say of them is of an old epoch. A suspect that was alone
// in flight is what ends them: it is not tried again.
void EngineCore::take_back(const Error& error) {
  const SchedulerStats stats = scheduler_->stats();
  past_.preemptions += stats.preemptions;
  past_.prompt_tokens += stats.prompt_tokens;
  past_.cached_prompt_tokens += stats.cached_prompt_tokens;
  const bool alone = scheduler_->requests_in_flight() == 1;
  uint64_t resumed = 0;
  for (auto& sequence : scheduler_->release_all()) {
    if (sequence->id == kCanaryRequest) continue;
    if (alone && sequence->in_lost_step && sequence->suspect()) {
      give_up(*sequence, error);
      continue;
    }
    resumed += sequence->admitted_before ? 1 : 0;
    queue_again(std::move(sequence));
  }
  scheduler_.reset();
  pace_.clear();
  canary_out_ = false;
  isolate_suspects(error);
  stats_.change([resumed](EngineStats& counts) { counts.requests_resumed += resumed; });
  if (!queue_.empty())
    log::info("{} requests wait for the next workers, {} of them go on where they were",
              queue_.size(), resumed);
}

// As long as the group is ready: a canary whenever no step was answered for a while and none is
// asked.
void EngineCore::watch_idle() {
  const Duration since = executor_->clock().now() - last_answer_;
  const bool idle = scheduler_->num_unfinished() == 0 && scheduler_->steps_in_flight() == 0;
  if (idle && since >= kCanaryAfter) send_canary();
  const Duration wait = since >= kCanaryAfter ? kCanaryAfter : kCanaryAfter - since;
  idle_timer_ = executor_->post_after(wait, [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && self->scheduler_) self->watch_idle();
  });
}

// One token through scheduler, transport, device and back, as any request's.
void EngineCore::send_canary() {
  const std::vector<TokenId> prompt = {0};
  SequenceParams params;
  params.max_tokens = 1;
  params.setup.temperature = 0;
  const Status added = scheduler_->add(
      std::make_unique<Sequence>(kCanaryRequest, prompt, std::move(params)), digest_of(prompt));
  REFRAIN_CHECK(added.has_value(), "the canary was refused: {}", added.error().message);
  canary_out_ = true;
  pump();
}

// Takes the canary's token out of a step's events. It is alone in its step, as none was running or
// waiting when it was sent.
bool EngineCore::take_canary(std::vector<TokenEvent>& events) {
  if (!canary_out_ || events.empty() || events.front().id != kCanaryRequest) return false;
  REFRAIN_CHECK(events.size() == 1, "the canary shared a step with {} tokens", events.size() - 1);
  canary_out_ = false;
  events.clear();
  return true;
}

}  // namespace refrain
