#pragma once
// How long the workers' steps take, and what follows for the next one (docs/scheduling.md): when it
// is planned, so that a request that comes meanwhile is in it; and how many prompt tokens it may
// have, so that no probe, cancel or shutdown waits long for a step, nor those who decode for a long
// prompt. Owned by the engine, on its executor; it outlives the workers, whose speed stays.

#include <array>
#include <deque>
#include <optional>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"

namespace refrain {

class StepPace {
 public:
  static constexpr double kLongestStep = 1.0;     // seconds
  static constexpr int32_t kUnknownTokens = 256;  // of prompts, until the speed is known
  static constexpr int32_t kLeastTokens = 32;
  // What those who decode wait for a long prompt's tokens in each step, unless these would be so
  // few that the prompt takes much longer in all.
  static constexpr double kLongChunk = 0.012;  // seconds
  static constexpr int32_t kLeastLongChunk = 256;

  explicit StepPace(int32_t max_num_batched_tokens) : most_(max_num_batched_tokens) {}

  void sent(const ipc::Step& step, TimePoint now);
  Duration done(TimePoint now);  // the oldest step that was sent; how long it took
  void clear();                  // nothing is in flight any more; what is known of steps stays
  // When the next step should be planned, `lead` before the oldest one in flight ends. Nothing: at
  // once, as none is in flight or too few like it were seen. Too late costs little: a step is
  // planned at once when none is in flight any more.
  std::optional<TimePoint> plan_at(Duration lead) const;
  int32_t prompt_tokens() const;  // of the next step, at most
  // Of these, of long prompts, where others decode.
  int32_t long_prompt_tokens() const;
  // What a token takes in steps with prompts; nothing: none was seen.
  std::optional<double> seconds_a_token() const { return seconds_a_token_; }

 private:
  struct Waiting;
  int32_t tokens_in(double seconds) const;
  std::optional<double> expected_seconds(const Waiting& step) const;

  static constexpr int kEnough = 4;                      // steps of a class before it predicts
  static constexpr double kFaster = 0.5, kSlower = 0.1;  // weight of a new duration
  static constexpr double kDoubt = 1.0 / 16;  // of the predicted time, planned that much earlier
  // A step with prompts of a class that was seen too rarely takes as long a token as those of the
  // nearest class that was not.
  struct Class {
    double seconds = 0;  // of a decode step; of any other, for each of its tokens
    int seen = 0;
  };
  // Steps of fewer prompt tokens say little of the speed of prompts.
  static constexpr int32_t kEnoughTokens = 32;
  static constexpr double kNewest = 0.3;  // weight of the newest step
  struct Waiting {
    int32_t tokens = 0, prompt_tokens = 0;
    size_t index = 0;     // of its class
    double units = 1;     // of Class::seconds
    TimePoint begun;      // sent, or the step before it was done
    bool behind = false;  // sent while another ran: its duration holds no way to the workers
  };
  static constexpr size_t kClasses = 128;  // decode steps by rows, then others by tokens
  std::array<Class, kClasses> classes_;
  std::deque<Waiting> steps_;
  const int32_t most_;
  std::optional<double> seconds_a_token_;  // of steps with prompts
};

}  // namespace refrain
