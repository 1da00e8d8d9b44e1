#pragma once
// The answers of all ranks to the steps in flight, and how long they may take. Owned by the
// worker group, on the engine's executor.

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace refrain {

// How long a step of so many tokens may take: max(2 s, 20 times the 99th percentile of steps of its
// size). Until enough of them have been seen, that of the next larger size known; or of the next
// smaller, times as many tokens; or kUnknown, when the ranks tell how far within it they are, since
// then the stall finds a hang. Ranks that do not tell are devices that ran every kernel before they
// were ready: they have kUnseen and kUnseenToken a token at most.
class StepDeadline {
 public:
  static constexpr Duration kLeast = std::chrono::seconds(2);
  static constexpr Duration kUnknown = std::chrono::seconds(120);
  static constexpr size_t kEnough = 8;

  void observe(size_t num_tokens, Duration took);
  Duration of(size_t num_tokens, bool ranks_tell = true) const;
  static constexpr Duration kUnseen = std::chrono::seconds(8);
  static constexpr Duration kUnseenToken = std::chrono::milliseconds(5);
  // How long no rank may get on within it: max(kLeastStall, the 99th percentile of the whole step).
  // While that is not known, what one launch may take on a slow host: kUnknownStall and
  // kUnknownStallToken a token. Positions come every quarter of a second, so that the least of it
  // is noticed within two seconds.
  Duration stall(size_t num_tokens) const;
  static constexpr Duration kLeastStall = std::chrono::milliseconds(1750);
  static constexpr Duration kUnknownStall = std::chrono::seconds(5);
  static constexpr Duration kUnknownStallToken = std::chrono::milliseconds(20);

 private:
  static constexpr size_t kWindow = 128;
  struct Sizes {
    std::array<Duration, kWindow> recent{};
    size_t seen = 0;
    Duration slow{};  // 99th percentile of the window, renewed every kEnough steps
  };
  static constexpr size_t kClasses = 24;
  static size_t size_class(size_t num_tokens);
  std::optional<Duration> slow_of(size_t size) const;
  std::array<Sizes, kClasses> classes_;
};

class StepGather {
 public:
  explicit StepGather(int32_t num_ranks) : num_ranks_(static_cast<size_t>(num_ranks)) {}

  // Another group of workers: nothing is in flight, what is known of steps stays. After a group
  // that hung, all limits double until kEnough steps are done, so that limits that are too narrow
  // for the workers do not end one group after another.
  void begin_group(bool after_hang);
  void sent(const ipc::Step& step, TimePoint now);
  void restart(TimePoint now);  // the time of the oldest step begins anew
  // Takes a rank's answer. Gives rank 0's when it was the last one missing. An error when the step
  // was not the next for this rank, or when the ranks disagree on the key.
  Result<std::optional<ipc::StepResult>> add(int32_t rank, ipc::StepResult result, TimePoint now);

  bool empty() const { return steps_.empty(); }
  StepId oldest() const { return steps_.empty() ? 0 : steps_.front().step; }
  StepId last_done() const { return last_done_; }
  // When the oldest step must be answered, by ranks that tell how far within it they are or do not.
  TimePoint deadline(bool ranks_tell = true) const;
  // When it hangs, if no rank gets on any more since then.
  TimePoint stalled(TimePoint last_progress) const;
  std::vector<int32_t> missing() const;  // ranks that have not answered the oldest step

 private:
  struct Waiting {
    StepId step = 0;
    size_t num_tokens = 0;
    TimePoint since;  // sent, or the step before it was done
    std::vector<std::optional<ipc::StepResult>> answers;
    size_t answered = 0;
  };
  size_t num_ranks_;
  std::deque<Waiting> steps_;
  StepId last_done_ = 0;
  StepDeadline deadline_;
  static constexpr int kMostPatience = 16;
  int patience_ = 1;  // times the usual limits
  size_t done_ = 0;   // steps of this group
};

}  // namespace refrain
