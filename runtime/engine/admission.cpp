#include "runtime/engine/admission.h"

#include <algorithm>
#include <cmath>

namespace refrain {
namespace {

constexpr double kFade = 5.0;           // seconds in which a measurement loses 63 % of its weight
constexpr double kLeastSeconds = 0.05;  // measured before a prediction is made
constexpr double kFirstOutput = 128;    // tokens of an answer, before any has been seen
constexpr double kOutputWeight = 0.02;  // of the newest answer in the mean length

constexpr double kShare = 0.85;  // of the limit that a prediction may fill: it errs a little
// Of the limit, and at most so long, must have been measured before a prediction refuses anyone:
// one slow step says nothing about a minute.
constexpr double kEvidence = 1.0 / 20, kMostEvidence = 3.0;

}  // namespace

Admission::Admission(AdmissionOptions options) : options_(options), mean_output_(kFirstOutput) {}

// The work ahead over the rate at which work is done. While requests wait, the running ones are
// replaced as they end, so what the running ones have left does not delay a new one further.
double Admission::predicted_wait() const {
  const bool full = static_cast<int64_t>(requests_.size()) >= options_.max_running;
  if ((!full && scheduler_waits_ == 0) || seconds_ < kLeastSeconds || tokens_ <= 0) return 0;
  return static_cast<double>(waiting_work_) * seconds_ / tokens_;
}

Status Admission::check_queue() {
  const auto all = static_cast<int64_t>(requests_.size());
  if (options_.max_queue == 0 || all < options_.max_running + options_.max_queue) return {};
  ++counts_.refused_queue;
  return fail(ErrorCode::kOverloaded,
              "{} requests run or wait, as many as --max-num-seqs and --max-queue allow; try again "
              "later",
              all);
}

Status Admission::check_wait(Duration limit) {
  const double predicted = predicted_wait();
  if (limit == Duration::zero() || predicted <= kShare * seconds_of(limit)) return {};
  if (seconds_ < std::min(kEvidence * seconds_of(limit), kMostEvidence)) return {};
  ++counts_.refused_wait;
  return fail(ErrorCode::kOverloaded,
              "the answer would begin in about {:.1f} s, and {:.1f} s are allowed; try again later",
              predicted, seconds_of(limit));
}

Status Admission::check() {
  const std::lock_guard lock(mutex_);
  REFRAIN_RETURN_IF_ERROR(check_queue());
  return check_wait(options_.max_queue_wait);
}

Result<RequestId> Admission::admit(int64_t prompt_tokens, int64_t max_tokens,
                                   std::optional<Duration> own_wait, TimePoint now) {
  const std::lock_guard lock(mutex_);
  REFRAIN_RETURN_IF_ERROR(check_queue());
  Duration limit = options_.max_queue_wait;
  if (own_wait && (limit == Duration::zero() || *own_wait < limit)) limit = *own_wait;
  REFRAIN_RETURN_IF_ERROR(check_wait(limit));
  return add(prompt_tokens, max_tokens, own_wait, now);
}

RequestId Admission::enter(int64_t prompt_tokens, int64_t max_tokens,
                           std::optional<Duration> own_wait, TimePoint now) {
  const std::lock_guard lock(mutex_);
  return add(prompt_tokens, max_tokens, own_wait, now);
}

RequestId Admission::add(int64_t prompt_tokens, int64_t max_tokens,
                         std::optional<Duration> own_wait, TimePoint now) {
  if (requests_.empty()) {  // it stood idle: that is no slow step, and nobody waits
    last_step_.reset();
    scheduler_waits_ = 0;
  }
  const RequestId id = next_id_++;
  Request& request = requests_[id];
  request.prompt_tokens = prompt_tokens;
  request.work = prompt_tokens + std::min<int64_t>(max_tokens, std::llround(mean_output_));
  waiting_work_ += request.work;
  if (own_wait) request.own_start_by = now + *own_wait;
  if (options_.max_queue_wait != Duration::zero())
    request.server_start_by = time_in_service(now) + options_.max_queue_wait;
  set_deadline(id, request, now);
  return id;
}

Duration Admission::time_in_service(TimePoint now) const {
  return served_ + (serves_since_ ? now - *serves_since_ : Duration::zero());
}

void Admission::set_deadline(RequestId id, Request& request, TimePoint now) {
  if (request.start_by) deadlines_.erase({*request.start_by, id});
  request.start_by = request.own_start_by;
  if (serves_since_ && request.server_start_by) {
    const TimePoint servers = now + (*request.server_start_by - time_in_service(now));
    request.start_by = std::min(request.start_by.value_or(servers), servers);
  }
  if (request.start_by) deadlines_.emplace(*request.start_by, id);
}

void Admission::end_wait(RequestId id, Request& request) {
  if (!request.waits) return;
  request.waits = false;
  waiting_work_ -= request.work;
  if (request.start_by) deadlines_.erase({*request.start_by, id});
}

void Admission::token(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (request.output_tokens++ == 0) tokens_since_ += request.prompt_tokens;
  ++tokens_since_;
  end_wait(id, request);
}

void Admission::started(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = requests_.find(id); found != requests_.end()) end_wait(id, found->second);
}

void Admission::gone(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  end_wait(id, found->second);
  if (found->second.output_tokens > 0) {
    // In all a request counts as the work that was expected of it, so that the queue's work and
    // the rate have one unit; a request that was cut off does not count for what it never did.
    const int64_t done = found->second.prompt_tokens + found->second.output_tokens;
    correction_ += static_cast<double>(std::min(found->second.work - done, done));
    ++outputs_;
    const double weight = std::max(kOutputWeight, 1.0 / static_cast<double>(outputs_));
    mean_output_ += weight * (static_cast<double>(found->second.output_tokens) - mean_output_);
  }
  requests_.erase(found);
}

void Admission::late() {
  const std::lock_guard lock(mutex_);
  ++counts_.late;
}

void Admission::step(TimePoint now, uint64_t waiting) {
  const std::lock_guard lock(mutex_);
  const bool full = static_cast<int64_t>(requests_.size()) >= options_.max_running;
  scheduler_waits_ = waiting;
  if (last_step_ && (full || waiting > 0)) {
    const double seconds = seconds_between(*last_step_, now);
    const double kept = std::exp(-seconds / kFade);
    const auto tokens = static_cast<double>(tokens_since_);
    const double corrected = std::clamp(correction_, -tokens / 2, tokens);
    correction_ = (correction_ - corrected) * kept;
    tokens_ = tokens_ * kept + tokens + corrected;
    seconds_ = seconds_ * kept + seconds;
  } else {
    correction_ = 0;
  }
  tokens_since_ = 0;
  last_step_ = now;
}

void Admission::out_of_service(TimePoint now) {
  const std::lock_guard lock(mutex_);
  last_step_.reset();
  tokens_since_ = 0;
  correction_ = 0;
  served_ = time_in_service(now);
  serves_since_.reset();
  set_deadlines(now);
}

void Admission::in_service(TimePoint now) {
  const std::lock_guard lock(mutex_);
  served_ = time_in_service(now);
  serves_since_ = now;
  set_deadlines(now);
}

void Admission::set_deadlines(TimePoint now) {
  for (auto& [id, request] : requests_)
    if (request.waits) set_deadline(id, request, now);
}

std::optional<TimePoint> Admission::next_deadline() const {
  const std::lock_guard lock(mutex_);
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

std::vector<RequestId> Admission::take_overdue(TimePoint now) {
  const std::lock_guard lock(mutex_);
  std::vector<RequestId> overdue;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Request& request = requests_.at(id);
    request.start_by = request.own_start_by = std::nullopt;
    request.server_start_by.reset();
    overdue.push_back(id);
  }
  return overdue;
}

AdmissionStats Admission::stats() const {
  const std::lock_guard lock(mutex_);
  AdmissionStats stats = counts_;
  stats.predicted_wait_seconds = predicted_wait();
  return stats;
}

}  // namespace refrain
