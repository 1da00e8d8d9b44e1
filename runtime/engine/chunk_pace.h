#pragma once
// How many prompt tokens a step may have, from how long the workers' steps took: a long prompt
// makes no step so long that a probe, a cancel or a shutdown waits for it. Owned by the engine, on
// its executor; it outlives its workers, whose speed stays.

#include <cstdint>
#include <deque>
#include <optional>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"

namespace refrain {

class ChunkPace {
 public:
  static constexpr double kLongestStep = 1.0;     // seconds
  static constexpr int32_t kUnknownTokens = 256;  // until the speed is known
  static constexpr int32_t kLeastTokens = 32;

  explicit ChunkPace(int32_t max_num_batched_tokens) : most_(max_num_batched_tokens) {}

  void sent(const ipc::Step& step, TimePoint now);
  // The answers of all ranks to the oldest step.
  void answered(TimePoint now);
  void restart();  // of a lost group no step is answered any more

  int32_t prompt_tokens() const;  // of the next step, at most

 private:
  // Steps of fewer prompt tokens say little of the speed.
  static constexpr int32_t kEnoughTokens = 32;
  static constexpr double kWeight = 0.3;  // of the newest step

  struct Sent {
    TimePoint at;
    int32_t tokens = 0;
    int32_t prompt_tokens = 0;
  };
  const int32_t most_;
  std::deque<Sent> in_flight_;
  TimePoint last_answer_{};
  std::optional<double> seconds_a_token_;
};

}  // namespace refrain
