#include "runtime/engine/rank_processes.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace refrain {

RankProcesses::RankProcesses(int32_t num_ranks, std::shared_ptr<Executor> executor,
                             ProcessWatch watch, ProcessKill kill)
    : executor_(std::move(executor)),
      watch_(std::move(watch)),
      kill_(std::move(kill)),
      ranks_(static_cast<size_t>(num_ranks)) {}

bool RankProcesses::watch(int32_t rank, const ProcessIdentity& process,
                          std::function<void()> ended) {
  auto watched = std::make_shared<Watched>(Watched{process.pid, false});
  if (!watch_(process, [watched, ended = std::move(ended)] {
        watched->gone = true;
        ended();
      }))
    return false;
  ranks_[static_cast<size_t>(rank)] = std::move(watched);
  return true;
}

bool RankProcesses::ended(int32_t rank) const {
  const auto& watched = ranks_[static_cast<size_t>(rank)];
  return watched && watched->gone;
}

void RankProcesses::let_go() {
  for (auto& watched : ranks_) watched.reset();
}

// A stopped or spinning process does not hear the shutdown, and whoever starts workers again waits
// for its end. One that has come back meanwhile, to the group that follows, is left alone.
void RankProcesses::kill_if_stay(Duration grace) {
  for (const auto& watched : ranks_) {
    if (!watched || watched->gone) continue;
    executor_->post_after(grace, [weak = weak_from_this(), watched] {
      const auto self = weak.lock();
      if (!self || watched->gone) return;
      const bool back = std::ranges::any_of(
          self->ranks_, [&](const auto& other) { return other && other->pid == watched->pid; });
      if (back) return;
      log::warn(
          "the worker with pid {} was let go and has neither ended nor come again; it is killed",
          watched->pid);
      self->kill_(watched->pid);
    });
  }
}

}  // namespace refrain
