#pragma once
// Keeps SIGINT and SIGTERM waiting while a process is being set up, so that one that comes early
// meets the handlers, not the default action that would leave files behind. Made and let go on
// main's thread before other threads care.

#include <signal.h>

namespace refrain {

class SignalHold {
 public:
  SignalHold() {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalHold() { release(); }
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;

  void release() {
    if (released_) return;
    released_ = true;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_;
  bool released_ = false;
};

}  // namespace refrain
