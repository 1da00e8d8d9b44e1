#pragma once
// The operating system's view of a group's ranks that run on this machine: the end of their
// processes is noticed, and one that was told to go and stays is killed. Owned by the
// worker group, on the engine's executor.

#include <functional>
#include <memory>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/base/clock.h"
#include "runtime/base/process_identity.h"

namespace refrain {

// Calls the function once when the local process ends; false: it cannot be watched.
using ProcessWatch =
    std::function<bool(const ProcessIdentity& process, std::function<void()> gone)>;
// Ends a local process at once (SIGKILL); only for one that is watched and not gone.
using ProcessKill = std::function<void(int64_t pid)>;

class RankProcesses : public std::enable_shared_from_this<RankProcesses> {
 public:
  RankProcesses(int32_t num_ranks, std::shared_ptr<Executor> executor, ProcessWatch watch,
                ProcessKill kill);

  // `ended` is called when the rank's process has ended, also after the group has let it go.
  bool watch(int32_t rank, const ProcessIdentity& process, std::function<void()> ended);
  // Its process has ended; its last words may still be on their way.
  bool ended(int32_t rank) const;
  void let_go();  // of all ranks: the next group's processes are watched
  // Those of them that are still there so long after, unless the next group has them.
  static constexpr Duration kGrace = std::chrono::milliseconds(500);
  void kill_if_stay(Duration grace = kGrace);

 private:
  struct Watched {
    int64_t pid = 0;
    bool gone = false;
  };

  std::shared_ptr<Executor> executor_;
  ProcessWatch watch_;
  ProcessKill kill_;
  std::vector<std::shared_ptr<Watched>> ranks_;  // null: not watched
};

}  // namespace refrain
