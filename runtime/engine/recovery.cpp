// The part of EngineCore that survives its workers: requests of a lost group go back to the queue
// and on with the next one.

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/handshake.h"

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
  options.audit_rate = config.audit_rate;
  return options;
}

}  // namespace

// Block tables, prefix cache and slots begin empty, as the new workers' memory does.
void EngineCore::on_ready(int64_t num_kv_blocks) {
  if (const auto changed = recaptured_otherwise(stats_.snapshot().ready, group_->ready()))
    log::warn("{}", *changed);
  scheduler_ = std::make_unique<Scheduler>(scheduler_options(config_, model_, num_kv_blocks));
  // Whether these workers are good decides who is to blame for the losses before.
  proving_ = group_->distrusted() || to_explain_ > 0;
  if (proving_) {
    if (trials_.on) tell_isolation(0);
  } else if (!trials_.on) {
    queue_to_scheduler();
  }
  last_answer_ = executor_->clock().now();
  stats_.answered(last_answer_);
  admission_.in_service(last_answer_);
  watch_queue();
  // The group is ready when this handler has returned.
  executor_->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->scheduler_) return;
    if (self->proving_) self->send_canary();
    self->pump();
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
    if (alone && sequence->in_lost_step) ++sequence->losses_alone;
    if (alone && sequence->in_lost_step && sequence->suspect()) {
      give_up(*sequence, error);
      continue;
    }
    resumed += sequence->admitted_before ? 1 : 0;
    queue_again(std::move(sequence));
  }
  scheduler_.reset();
  pace_.clear();
  canary_out_ = proving_ = false;
  isolate_suspects(error);
  stats_.change([resumed](EngineStats& counts) { counts.requests_resumed += resumed; });
  if (!queue_.empty())
    log::info("{} requests wait for the next workers, {} of them go on where they were",
              queue_.size(), resumed);
}

}  // namespace refrain
