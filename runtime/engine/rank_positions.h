#pragma once
// How far the ranks are within the steps in flight, as the control threads of their processes tell,
// and who of them keeps the others waiting (R-7, I8). Owned by the worker group, on the engine's
// executor.

#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"

namespace refrain {

class RankPositions {
 public:
  // A process that tells its position every quarter of a second and has missed four is silent.
  static constexpr Duration kSilent = std::chrono::seconds(1);

  explicit RankPositions(int32_t num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  void heard(int32_t rank, TimePoint now);  // a frame of its process, whatever it says
  // Whether its device has got on since its last report.
  bool report(int32_t rank, const ipc::Position& position, TimePoint now);
  void got_on(int32_t rank, TimePoint now) { ranks_[static_cast<size_t>(rank)].progress = now; }
  void restart(TimePoint now);  // what was not heard before now says nothing

  TimePoint last_heard(int32_t rank) const { return at(rank).heard; }
  // When a device last got on. Nothing as long as a rank does not tell what it does within a step.
  std::optional<TimePoint> last_progress() const;
  // Every rank has told its position, and one of them counts no launches: it never will tell.
  bool blind() const;
  // Of these ranks the silent ones, or else those that are furthest behind: all of them where they
  // are equal or nothing is known.
  std::vector<int32_t> laggards(const std::vector<int32_t>& ranks, TimePoint now) const;
  // "rank 0 is 84 launches past step 11, rank 1 is 0 launches past step 11 and silent for 1.9 s"
  std::string text(TimePoint now) const;

 private:
  struct Rank {
    std::optional<ipc::Position> position;
    TimePoint heard;
    TimePoint progress;  // when the position last changed
  };
  const Rank& at(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  bool silent(int32_t rank, TimePoint now) const { return now - at(rank).heard >= kSilent; }
  std::vector<Rank> ranks_;
};

}  // namespace refrain
