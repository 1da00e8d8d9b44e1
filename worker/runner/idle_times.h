#pragma once
// How long the device runs no op between two decode steps (--time-steps): from the end of a step's
// last op to the start of the next step's first. Copies of inputs (new slots' masks) count as idle.
// Device thread; logs median and 99th percentile when it is destroyed.

#include <cstddef>
#include <memory>
#include <vector>

#include "worker/device/device.h"

namespace refrain::worker {

class IdleTimes {
 public:
  explicit IdleTimes(int rank) : rank_(rank) {}
  ~IdleTimes();
  IdleTimes(const IdleTimes&) = delete;
  IdleTimes& operator=(const IdleTimes&) = delete;

  // A step that has been waited for, in the order of steps. Its events may be null: no ops ran.
  void add(bool decode, std::unique_ptr<Event> begun, std::unique_ptr<Event> ended);
  const std::vector<double>& microseconds() const { return microseconds_; }

 private:
  int rank_;
  bool after_decode_ = false;
  std::unique_ptr<Event> last_end_;
  std::vector<double> microseconds_;
};

}  // namespace refrain::worker
