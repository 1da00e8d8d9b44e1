#include "runtime/server/pooling_session.h"

#include <utility>

namespace refrain {

PoolingSession::PoolingSession(ApiRequest request, AnswerHead head, Engine& engine,
                               std::shared_ptr<Metrics> metrics,
                               std::shared_ptr<HttpExchange> exchange, KeyLease lease,
                               std::weak_ptr<TextWork> work)
    : request_(std::move(request)),
      head_(std::move(head)),
      engine_(engine),
      metrics_(std::move(metrics)),
      exchange_(std::move(exchange)),
      lease_(std::move(lease)),
      work_(std::move(work)),
      begun_(steady_clock().now()) {}

void PoolingSession::start(std::vector<std::vector<TokenId>> prompts) {
  const auto self = shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    if (Status allowed = lease_.take(std::ssize(prompts)); !allowed) {
      metrics_->count_key_limit();
      return fail_all(allowed.error());
    }
    unfinished_ = prompts.size();
    ids_.resize(prompts.size());
    vectors_.resize(prompts.size());
    for (const auto& prompt : prompts) usage_.prompt_tokens += std::ssize(prompt);
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    auto id = submit(i, std::move(prompts[i]));
    // Not while it submits: vectors come on a thread that must not wait for all prompts.
    const std::lock_guard lock(mutex_);
    if (ended_) {  // another prompt has failed
      if (id) engine_.cancel(*id);
      return;
    }
    if (!id) return fail_all(id.error());
    ids_[i] = *id;
  }
  exchange_->on_disconnect([self] {
    const std::lock_guard guard(self->mutex_);
    if (self->ended_) return;
    self->cancel_rest();
  });
}

Result<RequestId> PoolingSession::submit(size_t index, std::vector<TokenId> prompt) {
  GenerateRequest generate =
      begin_request(request_, std::move(prompt), lease_.key().cache_salt(), exchange_->io_thread());
  generate.pools = true;
  generate.sampling.max_tokens = 1;
  generate.sampling.ignore_eos = true;
  return engine_.submit(std::move(generate),
                        [self = shared_from_this(), index](RequestOutput output) {
                          self->on_output(index, std::move(output));
                        });
}

void PoolingSession::on_output(size_t index, RequestOutput output) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (output.error) return fail_all(*output.error);
  if (output.pooled == nullptr) {
    return fail_all({ErrorCode::kInternal, "the model gave no vector of numbers for a prompt", {}});
  }
  usage_.cached_tokens += output.cached_tokens;
  vectors_[index] = std::move(output.pooled);
  if (--unfinished_ == 0) finish();
}

void PoolingSession::finish() {
  const auto work = work_.lock();
  if (work == nullptr)
    return fail_all({ErrorCode::kUnavailable, "the server is shutting down", {}});
  ended_ = true;
  work->post_last(lease_.key().name(), exchange_, [self = shared_from_this()] { self->answer(); });
}

// Nothing else touches what has ended.
void PoolingSession::answer() {
  std::string body = dump(pooling_answer(head_, *request_.pooling, vectors_, usage_));
  lease_.release();
  metrics_->count_http(200);
  metrics_->observe_request({.begun = begun_, .ended = steady_clock().now()}, usage_.prompt_tokens,
                            0);
  exchange_->reply(200, "application/json", std::move(body));
}

// The engine speaks of prompts.
void PoolingSession::fail_all(Error error) {
  cancel_rest();
  if (error.field == "prompt") error.field = request_.pooling->documents_field();
  HttpReply reply = error_reply(error, engine_);
  metrics_->count_http(reply.status);
  exchange_->reply(std::move(reply));
}

// From here the key may have another request.
void PoolingSession::cancel_rest() {
  ended_ = true;
  for (size_t i = 0; i < ids_.size(); ++i)
    if (ids_[i] != 0 && vectors_[i] == nullptr) engine_.cancel(ids_[i]);
  lease_.release();
}

}  // namespace refrain
