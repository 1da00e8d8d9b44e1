#include "worker/runner/patient_strands.h"

#include <utility>

namespace refrain::worker {

void PatientStrands::Strand::publish(const std::function<void()>& write) {
  const std::lock_guard lock(mutex_);
  if (!given_up_) write();
}

bool PatientStrands::Strand::given_up() const {
  const std::lock_guard lock(mutex_);
  return given_up_;
}

void PatientStrands::Strand::give_up() {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
}

PatientStrands::PatientStrands(int num_threads, Duration patience)
    : num_threads_(num_threads), patience_(patience) {}

PatientStrands::~PatientStrands() {
  {
    std::unique_lock lock(shared_->mutex);
    for (const auto& strand : shared_->watched)
      if (!strand->tasks_.empty() && !strand->given_up()) give_up(*strand);
    shared_->stop = true;
    shared_->changed.notify_all();
    shared_->watch_changed.notify_all();
    shared_->changed.wait(lock, [this] { return shared_->threads == 0; });
  }
  if (watcher_.joinable()) watcher_.join();
}

std::shared_ptr<PatientStrands::Strand> PatientStrands::make_held() {
  auto strand = std::make_shared<Strand>();
  strand->state_ = Strand::State::kHeld;
  return strand;
}

void PatientStrands::release(const std::shared_ptr<Strand>& strand) {
  const std::lock_guard lock(shared_->mutex);
  strand->state_ = Strand::State::kIdle;
  if (strand->tasks_.empty()) return;
  enqueue(strand);
  shared_->changed.notify_one();
}

// Threads are there since the first task.
void PatientStrands::post(std::vector<Work> all) {
  if (all.empty()) return;
  bool watcher_sleeps = false;
  {
    const std::lock_guard lock(shared_->mutex);
    watcher_sleeps = shared_->watched.empty();
    if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
    while (shared_->threads < num_threads_) start_thread();
    const TimePoint until = steady_clock().now() + patience_;
    for (Work& work : all) {
      Strand& strand = *work.strand;
      if (strand.given_up()) {
        work.instead();
        continue;
      }
      strand.tasks_.push_back({std::move(work.run), std::move(work.instead), until});
      if (!std::exchange(strand.watched_, true)) shared_->watched.push_back(work.strand);
      if (strand.state_ == Strand::State::kIdle) enqueue(work.strand);
    }
  }
  shared_->changed.notify_all();
  if (watcher_sleeps) shared_->watch_changed.notify_one();
}

void PatientStrands::enqueue(const std::shared_ptr<Strand>& strand) {
  strand->state_ = Strand::State::kWaiting;
  shared_->waiting.push_back(strand);
}

void PatientStrands::start_thread() {
  ++shared_->threads;
  std::thread(&PatientStrands::run, shared_, num_threads_).detach();
}

// A thread comes back from a task given up to find that another one has taken its place.
void PatientStrands::run(const std::shared_ptr<Shared>& shared, int most) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stop || !shared->waiting.empty(); });
    if (shared->stop) break;
    const std::shared_ptr<Strand> strand = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    if (strand->given_up()) continue;
    strand->state_ = Strand::State::kRuns;
    while (!strand->tasks_.empty()) {
      const std::function<void()>& task = strand->tasks_.front().run;  // stays where it is
      lock.unlock();
      task();
      lock.lock();
      if (strand->state_ != Strand::State::kRuns) return strand->tasks_.clear();
      strand->tasks_.pop_front();
      strand->late_ = false;
      if (!strand->given_up()) continue;
      for (const Strand::Task& left : strand->tasks_) left.instead();
      strand->tasks_.clear();
    }
    strand->state_ = Strand::State::kIdle;
    if (shared->waiting.empty() && shared->threads > most) break;
  }
  --shared->threads;
  shared->changed.notify_all();
}

void PatientStrands::watch() {
  constexpr auto kLook = std::chrono::milliseconds(25);
  std::unique_lock lock(shared_->mutex);
  while (!shared_->stop) {
    if (shared_->watched.empty()) {
      shared_->watch_changed.wait(lock);
      continue;
    }
    shared_->watch_changed.wait_for(lock, kLook);
    lock.unlock();
    give_up_overdue(steady_clock().now());
    lock.lock();
  }
}

void PatientStrands::give_up_overdue(TimePoint now) {
  const std::lock_guard lock(shared_->mutex);
  std::erase_if(shared_->watched, [&](const std::shared_ptr<Strand>& strand) {
    if (!strand->tasks_.empty() && now >= strand->tasks_.front().until) {
      if (strand->state_ != Strand::State::kRuns && !std::exchange(strand->late_, true)) {
        strand->tasks_.front().until = now + patience_;
        if (strand->state_ == Strand::State::kWaiting) start_thread();
      } else {
        give_up(*strand);
      }
    }
    if (!strand->tasks_.empty() && !strand->given_up()) return false;
    strand->watched_ = false;
    return true;
  });
}

// What it has published stays. A task that runs is dropped by its thread.
void PatientStrands::give_up(Strand& strand) {
  {
    const std::lock_guard lock(strand.mutex_);
    strand.given_up_ = true;
    for (const Strand::Task& task : strand.tasks_) task.instead();
  }
  const bool runs = strand.state_ == Strand::State::kRuns;
  strand.state_ = Strand::State::kIdle;
  if (!runs) return strand.tasks_.clear();
  --shared_->threads;
  if (!shared_->stop) start_thread();
}

}  // namespace refrain::worker
