#include "runtime/actor/strand_executor.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace refrain {
namespace asio = boost::asio;

// Timers not yet run or cancelled. A timer's handler runs its task only if it still finds itself
// here, which makes cancel() final on the strand even when the timer has already expired.
struct StrandExecutor::Timers {
  std::mutex mutex;
  TimerId next = 1;
  std::unordered_map<TimerId, std::shared_ptr<asio::steady_timer>> live;

  bool take(TimerId id) {
    const std::scoped_lock lock(mutex);
    return live.erase(id) > 0;
  }
};

StrandExecutor::StrandExecutor(asio::io_context& context)
    : context_(context), strand_(context.get_executor()), timers_(std::make_shared<Timers>()) {}

// Timers still running keep themselves alive: a posted task runs even when nobody holds the
// executor any more.
StrandExecutor::~StrandExecutor() = default;

void StrandExecutor::post(std::function<void()> task) { asio::post(strand_, std::move(task)); }

TimerId StrandExecutor::post_after(Duration delay, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(context_, delay);
  const std::scoped_lock lock(timers_->mutex);
  const TimerId id = timers_->next++;
  timers_->live.emplace(id, timer);
  timer->async_wait(asio::bind_executor(
      strand_, [id, timer, timers = timers_, task = std::move(task)](auto error) {
        if (timers->take(id) && !error) task();
      }));
  return id;
}

void StrandExecutor::cancel(TimerId timer) {
  std::shared_ptr<asio::steady_timer> cancelled;
  const std::scoped_lock lock(timers_->mutex);
  const auto found = timers_->live.find(timer);
  if (found == timers_->live.end()) return;
  cancelled = std::move(found->second);
  timers_->live.erase(found);
  cancelled->cancel();  // under the lock: two threads may cancel, a timer is not thread-safe
}

}  // namespace refrain
