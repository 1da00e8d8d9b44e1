#include "runtime/engine/worker_group.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

WorkerGroup::WorkerGroup(WorkerGroupOptions options, std::unique_ptr<ipc::Endpoint> endpoint,
                         std::shared_ptr<Executor> executor, ProcessWatch watch,
                         WorkerGroupHandlers handlers)
    : options_(std::move(options)),
      endpoint_(std::move(endpoint)),
      executor_(std::move(executor)),
      watch_(std::move(watch)),
      handlers_(std::move(handlers)),
      epoch_(options_.first_epoch),
      ranks_(static_cast<size_t>(options_.identity.tensor_parallel_size)),
      board_(options_.identity.tensor_parallel_size),
      gather_(options_.identity.tensor_parallel_size) {}

void WorkerGroup::start() {
  waiting_since_ = last_tick_ = executor_->clock().now();
  arm_timer(options_.start_timeout);
  endpoint_->start(
      [weak = weak_from_this()](const ipc::PeerId& from, std::span<const std::byte> frame) {
        if (const auto self = weak.lock()) self->on_frame(from, frame);
      });
}

bool WorkerGroup::active() const {
  return state_ == GroupState::kWaiting || state_ == GroupState::kStarting ||
         state_ == GroupState::kReady;
}

int32_t WorkerGroup::rank_of(const ipc::PeerId& peer) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank] && ranks_[rank]->peer == peer) return static_cast<int32_t>(rank);
  return -1;
}

std::string WorkerGroup::name_of(int32_t rank) const {
  const auto& known = ranks_[static_cast<size_t>(rank)];
  if (!known) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {} on {})", rank, known->hello.pid, known->hello.host);
}

void WorkerGroup::beat_or_fence(Rank& rank) {
  if (const Status sent = beat(rank); !sent)
    fence(fmt::format("{} takes no messages: {}", name_of(rank.hello.rank), sent.error().message));
}

// Encoded once as long as all ranks are at the same sequence, which they are from their start on.
void WorkerGroup::broadcast(const ipc::Message& message) {
  uint64_t encoded = 0;
  for (auto& rank : ranks_) {
    if (!rank) continue;
    if (++rank->sent != encoded) {
      encoded = rank->sent;
      ipc::encode_frame(message, {epoch_, encoded}, frame_);
    }
    if (const Status sent = endpoint_->send(rank->peer, frame_); !sent)
      fence(
          fmt::format("{} takes no messages: {}", name_of(rank->hello.rank), sent.error().message));
  }
}

void WorkerGroup::send_step(const ipc::Message& step) {
  REFRAIN_CHECK(state_ == GroupState::kReady, "a step for a group that is not ready");
  gather_.sent(std::get<ipc::Step>(step), executor_->clock().now());
  broadcast(step);
}

// From a turn of its own: the caller may be in the middle of the engine's or the group's work.
void WorkerGroup::fence(std::string reason) {
  executor_->post([weak = weak_from_this(), epoch = epoch_, reason = std::move(reason)] {
    if (const auto self = weak.lock(); self && self->epoch_ == epoch) self->lose(reason);
  });
}

// The group is the unit of failure: what is left of it is told to go, and a new set is awaited.
void WorkerGroup::lose(std::string reason, bool for_good) {
  if (!active()) return;
  log::error("worker group of epoch {}: {}", epoch_, reason);
  dismiss_all(reason);
  ++epoch_;
  if (!for_good) ++restarts_;
  if (state_ == GroupState::kReady) waiting_since_ = executor_->clock().now();
  const ErrorCode code = for_good ? ErrorCode::kInternal : ErrorCode::kUnavailable;
  handlers_.on_lost({code, reason, {}}, for_good);
  set_state(for_good ? GroupState::kFailed : GroupState::kWaiting, std::move(reason));
  if (for_good) {
    executor_->cancel(timer_);
  } else {
    arm_timer(options_.start_timeout - (executor_->clock().now() - waiting_since_));
  }
}

void WorkerGroup::dismiss_all(const std::string& reason) {
  for (auto& rank : ranks_) {
    if (!rank) continue;
    ipc::encode_frame(ipc::Shutdown{reason}, {epoch_, ++rank->sent}, frame_);
    // A rank that cannot be told is the one that is gone.
    if (const Status sent = endpoint_->send(rank->peer, frame_); !sent)
      log::debug("shutdown to {}: {}", name_of(rank->hello.rank), sent.error().message);
    rank.reset();
  }
  board_ = StartBoard(options_.identity.tensor_parallel_size);
  gather_ = StepGather(options_.identity.tensor_parallel_size);
  num_kv_blocks_ = 0;
}

void WorkerGroup::stop(const std::string& reason) {
  if (state_ == GroupState::kStopped) return;
  dismiss_all(reason);
  ++epoch_;
  executor_->cancel(timer_);
  endpoint_->close();
  set_state(GroupState::kStopped, reason);
}

void WorkerGroup::set_state(GroupState state, std::string detail) {
  detail_ = std::move(detail);
  if (state == state_) return;
  state_ = state;
  handlers_.on_state(state_, detail_);
}

std::vector<ipc::Ready> WorkerGroup::ready() const {
  std::vector<ipc::Ready> all;
  for (const auto& rank : ranks_)
    if (rank && rank->ready) all.push_back(*rank->ready);
  return all;
}

std::vector<std::string> WorkerGroup::devices() const {
  std::vector<std::string> all;
  for (const auto& rank : ranks_)
    if (rank) all.push_back(rank->hello.device);
  return all;
}

void WorkerGroup::arm_timer(Duration delay) {
  executor_->cancel(timer_);
  timer_ = executor_->post_after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void WorkerGroup::on_timer() {
  const TimePoint now = executor_->clock().now();
  // To a rank that starts it only shows that its connection is alive: a loading device is silent.
  for (auto& rank : ranks_)
    if (rank) beat_or_fence(*rank);
  if (state_ == GroupState::kWaiting || state_ == GroupState::kStarting)
    return check_start_deadline(now);
  if (state_ != GroupState::kReady) return;
  arm_timer(options_.heartbeat_interval);
  // This process itself stood still: the ranks' silence says nothing.
  const bool stalled = now - last_tick_ > 3 * options_.heartbeat_interval;
  last_tick_ = now;
  if (stalled) {
    log::warn("the coordinator's loop stood still; ranks get another {} s",
              seconds(options_.heartbeat_timeout));
    for (auto& rank : ranks_) rank->last_heard = now;
    return;
  }
  check_ranks(now);
}

void WorkerGroup::check_start_deadline(TimePoint now) {
  const Duration left = options_.start_timeout - (now - waiting_since_);
  if (left > Duration::zero())
    return arm_timer(state_ == GroupState::kWaiting ? left
                                                    : std::min(left, options_.heartbeat_interval));
  std::string missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank]) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
  lose(missing.empty()
           ? fmt::format("the workers were not ready after {} s: {}",
                         seconds(options_.start_timeout), progress_line(board_.slowest()))
           : fmt::format("no worker of rank {} came within {} s; start it with the coordinator's "
                         "address",
                         missing, seconds(options_.start_timeout)),
       true);
}

// While a step is in flight the device loop may be busy in it, and its deadline rules; without one
// every rank must be heard of.
void WorkerGroup::check_ranks(TimePoint now) {
  if (!gather_.empty()) {
    if (now < gather_.deadline()) return;
    std::string names;
    for (const int32_t rank : gather_.missing())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(rank));
    return lose(fmt::format("step {} was not answered in time by {}", gather_.oldest(), names));
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Duration silence = now - ranks_[i]->last_heard;
    if (silence > options_.heartbeat_timeout)
      return lose(fmt::format("{} has been silent for {:.1f} s", name_of(static_cast<int32_t>(i)),
                              seconds(silence)));
  }
}

}  // namespace refrain
