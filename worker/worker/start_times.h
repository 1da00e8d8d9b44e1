#pragma once
// How long a worker's start took, part by part, from exec to ready, in one line of the log. Device
// thread.

#include <string>

#include "runtime/base/clock.h"

namespace refrain::worker {

// Seconds since this process was started (exec), to a hundredth; 0 where /proc does not say.
double seconds_since_exec();

class StartTimes {
 public:
  // `first` names what has passed since exec.
  explicit StartTimes(const char* first);
  // Forgets what came before: the start of another group in the same process.
  void restart() { parts_.clear(), total_ = 0, last_ = steady_clock().now(); }
  // Ends the part that began with the mark before.
  void mark(const char* part);
  // "process and device 0.52 s, group 0.41 s, …; 1.93 s in all"
  std::string text() const;

 private:
  void add(const char* part, double seconds);
  std::string parts_;
  double total_ = 0;
  TimePoint last_;
};

}  // namespace refrain::worker
