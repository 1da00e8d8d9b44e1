#include "runtime/server/text_work.h"

#include "runtime/base/log.h"
#include "runtime/server/request_head.h"

namespace refrain {
namespace {

// Nothing that a client sends ends the process.
Error error_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ErrorCode::kUnavailable, "the server has no memory for this request now", {}};
  }
  return {ErrorCode::kInternal, "internal error", {}};
}

const Error kShuttingDown{ErrorCode::kUnavailable, "the server is shutting down", {}};

}  // namespace

TextWork::TextWork(const EngineConfig& config, const ApiKeys& keys, Replies replies, int threads)
    : config_(config), keys_(keys), replies_(std::move(replies)) {
  long_pool_.emplace(1, "grammar");
  pool_.emplace(threads, "text");
}

void TextWork::end() {
  stop();
  {
    const std::lock_guard lock(posting_);
    ended_ = true;
  }
  pool_.reset();
  long_pool_.reset();
}

bool TextWork::too_many() const {
  return config_.max_queue > 0 && tasks_ >= config_.worker.max_num_seqs + config_.max_queue;
}

void TextWork::post(HttpRequest& request, const Exchange& exchange, Work work) {
  KeyLease lease(key_of(keys_, request));
  if (Status allowed = lease.take(1); !allowed) {
    replies_.metrics()->count_key_limit();
    return replies_.error(exchange, allowed.error());
  }
  if (too_many()) {
    return replies_.error(
        exchange, {ErrorCode::kOverloaded,
                   "as many requests wait to be read as --max-num-seqs and --max-queue allow; "
                   "try again later",
                   {}});
  }
  // A std::function must be copyable, a lease is not.
  struct Held {
    HttpRequest request;
    KeyLease lease;
  };
  auto held = std::make_shared<Held>(Held{std::move(request), std::move(lease)});
  const std::string owner = held->lease.key().name();
  post_turn(owner, exchange, [held, exchange, work = std::move(work)] {
    work(std::move(held->request), std::move(held->lease), exchange);
  });
}

void TextWork::post_answer(HttpRequest& request, const Exchange& exchange,
                           std::function<Result<Json>(HttpRequest)> work) {
  post(request, exchange,
       [this, work = std::move(work)](HttpRequest request, const KeyLease& /*held*/,
                                      const Exchange& exchange) {
         auto answer = work(std::move(request));
         if (!answer) return replies_.error(exchange, answer.error());
         replies_.json(exchange, *answer);
       });
}

void TextWork::post_turn(const std::string& owner, const Exchange& exchange,
                         std::function<void()> work) {
  put(pool_, owner, exchange, std::move(work));
}

void TextWork::post_long_turn(const std::string& owner, const Exchange& exchange,
                              std::function<void()> work) {
  put(long_pool_, owner, exchange, std::move(work));
}

void TextWork::put(std::optional<ThreadPool>& pool, const std::string& owner,
                   const Exchange& exchange, std::function<void()> work) {
  const std::lock_guard lock(posting_);
  if (ended_) return replies_.error(exchange, kShuttingDown);
  ++tasks_;
  auto gone = std::make_shared<std::atomic<bool>>(false);
  exchange->on_disconnect([gone] { *gone = true; });
  pool->post(owner, [this, exchange, gone = std::move(gone), work = std::move(work)] {
    if (!*gone) run(exchange, work);
    --tasks_;
  });
}

void TextWork::post_last(const std::string& owner, const Exchange& exchange,
                         std::function<void()> work) {
  const std::lock_guard lock(posting_);
  if (ended_) return replies_.error(exchange, kShuttingDown);
  pool_->post(owner + "'s answers",  // in turns with its requests, not behind them
              [this, exchange, work = std::move(work)] { run_last(exchange, work); });
}

void TextWork::run(const Exchange& exchange, const std::function<void()>& work) {
  if (stopped_) return replies_.error(exchange, kShuttingDown);
  run_last(exchange, work);
}

void TextWork::run_last(const Exchange& exchange, const std::function<void()>& work) try {
  work();
} catch (const std::exception& error) {
  log::error("reading a request: {}", error.what());
  replies_.error(exchange, error_of(error));
}

}  // namespace refrain
