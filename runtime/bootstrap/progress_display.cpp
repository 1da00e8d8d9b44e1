#include "runtime/bootstrap/progress_display.h"

#include <unistd.h>

#include <cstdio>

#include "runtime/base/log.h"

namespace refrain {
namespace {

constexpr int kBarWidth = 32;

}  // namespace

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

void ProgressDisplay::show(const StartProgress& progress) {
  if (terminal_) {
    // The cursor waits at the line's begin, so that another process's log line covers the bar.
    std::fprintf(stderr, "%s\x1b[K\r", progress_bar(progress, kBarWidth).c_str());
    std::fflush(stderr);
    drawn_ = true;
    return;
  }
  if (progress.progress.phase == phase_) return;
  phase_ = progress.progress.phase;
  if (phase_ != ipc::StartPhase::kReady) log::info("workers: {}", progress_line(progress));
}

void ProgressDisplay::finish() {
  if (!drawn_) return;
  drawn_ = false;
  std::fputs("\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace refrain
