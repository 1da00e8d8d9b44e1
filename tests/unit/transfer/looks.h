#pragma once
// Turns of a puller in a test.

#include "runtime/base/clock.h"
#include "worker/transfer/puller.h"

namespace refrain::worker {

// For some looks at flags, and what comes of them: each turn waits out the time that lies between
// two looks, so that the next one looks again.
inline void poll_with_looks(Puller& puller) {
  constexpr int kTurns = 5;
  for (int turn = 0; turn < kTurns; ++turn) {
    puller.poll(std::chrono::milliseconds(0));
    const TimePoint next = steady_clock().now() + Puller::kLookEvery;
    while (steady_clock().now() < next) {
    }
  }
}

}  // namespace refrain::worker
