#pragma once
// The private directory of one start: the engine's socket and, without --incident-dir, incident
// records. Named refrain-<pid>-<random>, mode 0700, locked while its owner lives; it goes with its
// owner, and what an owner left that was killed goes at the next start of the same user. Main's
// thread.

#include <sys/types.h>

#include <string>

#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"

namespace refrain {

class RunDirectory {
 public:
  // In $XDG_RUNTIME_DIR, $TMPDIR or /tmp, the first that can be used; removes stale ones there.
  static Result<RunDirectory> create();
  RunDirectory(RunDirectory&& other) noexcept = default;
  RunDirectory& operator=(RunDirectory&&) = delete;
  ~RunDirectory();

  const std::string& path() const { return path_; }
  std::string address() const { return "ipc://" + path_ + "/engine"; }

 private:
  RunDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;  // empty: moved from
  UniqueFd lock_;
};

// Removes this user's run directories and shared memory whose owners are gone.
void remove_stale_runs();
// Removes the run directory of a process that is known to be gone.
void remove_run_of(pid_t owner);
// Removes shared memory that killed ranks of this engine left while they joined their group: of
// all groups, or of one of several.
void remove_segments_of(pid_t engine_pid);
void remove_segments_of(pid_t engine_pid, int group);

}  // namespace refrain
