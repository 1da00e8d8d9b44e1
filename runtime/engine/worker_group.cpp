#include "runtime/engine/worker_group.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

constexpr const char* kProgress = "progress";
constexpr const char* kStepDeadline = "step deadline";

}  // namespace

WorkerGroup::WorkerGroup(WorkerGroupOptions options, std::unique_ptr<ipc::Endpoint> endpoint,
                         std::shared_ptr<Executor> executor, ProcessWatch watch, ProcessKill kill,
                         WorkerGroupHandlers handlers)
    : options_(std::move(options)),
      endpoint_(std::move(endpoint)),
      executor_(std::move(executor)),
      watch_(std::move(watch)),
      kill_(std::move(kill)),
      handlers_(std::move(handlers)),
      epoch_(options_.first_epoch),
      ranks_(static_cast<size_t>(options_.identity.tensor_parallel_size)),
      board_(options_.identity.tensor_parallel_size),
      gather_(options_.identity.tensor_parallel_size),
      positions_(options_.identity.tensor_parallel_size) {}

void WorkerGroup::start() {
  waiting_since_ = executor_->clock().now();
  arm_timer(options_.heartbeat_interval);
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

std::string WorkerGroup::names_of(const std::vector<int32_t>& ranks) const {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int32_t rank : ranks) names.push_back(name_of(rank));
  return fmt::format("{}", fmt::join(names, ", "));
}

void WorkerGroup::beat_or_fence(Rank& rank) {
  if (const Status sent = beat(rank); !sent) fence_deaf(rank, sent.error());
}

void WorkerGroup::fence_deaf(const Rank& rank, const Error& error) {
  fence("connection", rank.hello.rank,
        fmt::format("{} takes no messages: {}", name_of(rank.hello.rank), error.message));
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
      fence_deaf(*rank, sent.error());
  }
}

void WorkerGroup::send_step(const ipc::Message& step) {
  REFRAIN_CHECK(state_ == GroupState::kReady, "a step for a group that is not ready");
  gather_.sent(std::get<ipc::Step>(step), executor_->clock().now());
  broadcast(step);
}

// From a turn of its own: the caller may be in the middle of the engine's or the group's work.
void WorkerGroup::fence(std::string detector, int32_t rank, std::string reason) {
  executor_->post([weak = weak_from_this(), epoch = epoch_, detector = std::move(detector), rank,
                   reason = std::move(reason)] {
    if (const auto self = weak.lock(); self && self->epoch_ == epoch)
      self->lose(detector, {rank}, reason);
  });
}

void WorkerGroup::distrust() {
  executor_->post([weak = weak_from_this(), epoch = epoch_] {
    const auto self = weak.lock();
    if (!self || self->epoch_ != epoch) return;
    const bool again = std::exchange(self->distrusted_, true);
    const std::string what =
        "a request of one token, made to test the workers, has no finite logit";
    self->lose("canary", {},
               again ? what +
                           ", as with the workers before, though all weights of the checkpoint "
                           "are finite: no restart will help"
                     : what + "; the next workers check their weights",
               again);
  });
}

// The group is the unit of failure: what is left of it is told to go, and a new set is awaited.
void WorkerGroup::lose(std::string detector, std::vector<int32_t> ranks, std::string reason,
                       bool for_good) {
  if (!active()) return;
  log::error("worker group of epoch {}: {}", epoch_, reason);
  GroupLoss loss;
  loss.epoch = epoch_;
  loss.detector = std::move(detector);
  loss.reason = reason;
  loss.for_good = for_good;
  loss.ranks = std::move(ranks);
  loss.last_step = gather_.last_done();
  for (const auto& rank : ranks_)
    if (rank) loss.pids.push_back(rank->hello.pid);
  const bool hung = loss.detector == kProgress || loss.detector == kStepDeadline;
  handlers_.on_loss(std::move(loss));
  for (const auto& rank : ranks_)
    if (rank) kill_if_it_stays(*rank);
  dismiss_all(reason);
  gather_.begin_group(hung);
  ++epoch_;
  if (!for_good) ++restarts_;
  if (state_ == GroupState::kReady) waiting_since_ = executor_->clock().now();
  handlers_.on_lost({ErrorCode::kUnavailable, reason, {}}, for_good);
  set_state(for_good ? GroupState::kFailed : GroupState::kWaiting, std::move(reason));
  if (for_good) {
    executor_->cancel(timer_);
  } else {
    arm_timer(options_.heartbeat_interval);
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
  positions_ = RankPositions(options_.identity.tensor_parallel_size);
  num_kv_blocks_ = 0;
}

// A stopped or spinning process does not hear the shutdown, and whoever starts workers again waits
// for its end. One that has come back meanwhile, to the group that follows, is left alone.
void WorkerGroup::kill_if_it_stays(const Rank& rank) {
  if (!rank.gone || *rank.gone) return;
  executor_->post_after(kGrace, [weak = weak_from_this(), gone = rank.gone, pid = rank.hello.pid] {
    const auto self = weak.lock();
    if (!self || *gone) return;
    const bool back = std::ranges::any_of(self->ranks_, [pid](const auto& other) {
      return other && other->gone && other->hello.pid == pid;
    });
    if (back) return;
    log::warn("the worker with pid {} was told to go and is still there; it is killed", pid);
    self->kill_(pid);
  });
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
  timer_due_ = executor_->clock().now() + delay;
  timer_ = executor_->post_after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void WorkerGroup::on_timer() {
  const TimePoint now = executor_->clock().now();
  const bool paused = stood_still(now);
  // To a rank that starts it only shows that its connection is alive: a loading device is silent.
  for (auto& rank : ranks_)
    if (rank) beat_or_fence(*rank);
  if (state_ == GroupState::kStarting && !paused && !check_start_progress(now)) return;
  if (state_ == GroupState::kWaiting || state_ == GroupState::kStarting)
    return check_start_deadline(now);
  if (state_ != GroupState::kReady) return;
  if (!paused) check_ranks(now);
  if (state_ == GroupState::kReady) arm_timer(until_next_sweep(now));
}

// When this process itself did not run, what it did not hear in that time says nothing: the ranks
// and the step in flight get their time anew.
bool WorkerGroup::stood_still(TimePoint now) {
  const Duration late = now - timer_due_;
  if (late <= kStall) return false;
  log::warn("the coordinator's loop stood still for {:.1f} s; the workers get their time anew",
            seconds_of(late));
  waiting_since_ += late;
  gather_.restart(now);
  positions_.restart(now);
  board_.restart(now);
  for (auto& rank : ranks_)
    if (rank) rank->last_heard = now;
  return true;
}

// At an interval, and exactly when a rank's or a step's time is over.
Duration WorkerGroup::until_next_sweep(TimePoint now) const {
  TimePoint next = now + options_.heartbeat_interval;
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank)
    next = std::min(next, last_sign(rank) + options_.heartbeat_timeout);
  if (!gather_.empty()) next = std::min(next, gather_.deadline(!positions_.blind()));
  if (const auto stall = stalled()) next = std::min(next, *stall);
  return std::max<Duration>(next - now, std::chrono::milliseconds(1));
}

// A rank that hangs in its start is found long before the start's own time is over. False: the
// group is lost.
bool WorkerGroup::check_start_progress(TimePoint now) {
  const Duration limit = std::max<Duration>(kStartStall, options_.start_timeout / 10);
  std::vector<int32_t> stuck = board_.stuck(now - limit);
  if (stuck.empty()) return true;
  std::string reason = fmt::format("the start of {} has stood still for {} s: {}", names_of(stuck),
                                   seconds_of(limit), progress_line(board_.of(stuck.front())));
  lose("start", std::move(stuck), std::move(reason));
  return false;
}

void WorkerGroup::check_start_deadline(TimePoint now) {
  const Duration left = options_.start_timeout - (now - waiting_since_);
  if (left > Duration::zero()) return arm_timer(std::min(left, options_.heartbeat_interval));
  std::vector<int32_t> missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank]) missing.push_back(static_cast<int32_t>(rank));
  }
  lose(GroupLoss::kStartTimeout, missing,
       missing.empty()
           ? fmt::format("the workers were not ready after {} s: {}",
                         seconds_of(options_.start_timeout), progress_line(board_.slowest()))
           : fmt::format("no worker of rank {} came within {} s; start it with the coordinator's "
                         "address",
                         fmt::join(missing, ", "), seconds_of(options_.start_timeout)),
       true);
}

// While a step is in flight the device loop may be busy in it: then any frame of the process will
// do, and the step's own limits rule. Without one the device loop itself must be heard of.
TimePoint WorkerGroup::last_sign(int32_t rank) const {
  return gather_.empty() ? ranks_[static_cast<size_t>(rank)]->last_heard
                         : positions_.last_heard(rank);
}

std::optional<TimePoint> WorkerGroup::stalled() const {
  const auto progress = positions_.last_progress();
  if (gather_.empty() || !progress) return std::nullopt;
  return gather_.stalled(*progress);
}

void WorkerGroup::check_ranks(TimePoint now) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    const Duration silence = now - last_sign(rank);
    if (silence < options_.heartbeat_timeout) continue;
    return lose("heartbeat", {rank},
                fmt::format("{} has been silent for {:.1f} s; its last step is {}", name_of(rank),
                            seconds_of(silence), ranks_[static_cast<size_t>(rank)]->last_step));
  }
  if (!gather_.empty()) check_step(now);
}

// The step in flight has a deadline, and within it the ranks have to get on. Those that the others
// wait for are at fault.
void WorkerGroup::check_step(TimePoint now) {
  const auto stall = stalled();
  const bool hangs = stall && now >= *stall;
  if (!hangs && now < gather_.deadline(!positions_.blind())) return;
  const std::vector<int32_t> late = gather_.missing();
  std::vector<int32_t> behind = positions_.laggards(late, now);
  std::string reason = fmt::format(
      "{} {}, {} {}: {}", hangs ? "no rank gets on with step" : "the time is over for step",
      gather_.oldest(), behind.size() == 1 ? "held up by" : "nobody stands out of",
      names_of(behind), positions_.text(now));
  lose(hangs ? kProgress : kStepDeadline, std::move(behind), std::move(reason));
}

}  // namespace refrain
