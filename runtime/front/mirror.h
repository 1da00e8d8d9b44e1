#pragma once
// What the coordinator last said of itself, for any thread.

#include <mutex>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/engine/engine.h"

namespace refrain::front {

class Mirror {
 public:
  void tell(const EngineHealth& health, TimePoint now);
  void tell(const EngineStats& stats, uint64_t late);
  void lose(const std::string& detail);  // it is gone
  void set_requests(uint64_t requests);  // that the front has, wherever they are

  EngineHealth health(TimePoint now) const;  // what it said grows old with it
  EngineStats stats() const;
  uint64_t late() const;

 private:
  mutable std::mutex mutex_;
  bool there_ = false;
  EngineHealth health_;
  TimePoint told_{};
  EngineStats stats_;
  uint64_t late_ = 0;
  uint64_t requests_ = 0;
};

}  // namespace refrain::front
