#pragma once
// How far the workers' start is, on standard error: one bar that redraws itself on a terminal, a
// line a phase elsewhere. Used on the engine's executor, or by one thread at a time.

#include "runtime/engine/start_progress.h"

namespace refrain {

class ProgressDisplay {
 public:
  // `terminal`: draw a bar; else lines go to the log.
  explicit ProgressDisplay(bool terminal) : terminal_(terminal) {}
  ~ProgressDisplay() { finish(); }

  void show(const StartProgress& progress);
  void finish();  // takes the bar away; log lines follow

 private:
  bool terminal_;
  bool drawn_ = false;
  ipc::StartPhase phase_ = ipc::StartPhase::kConnect;
};

bool stderr_is_terminal();

}  // namespace refrain
