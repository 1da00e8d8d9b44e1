#pragma once
// How far a group's start is: for people the rank that is furthest behind stands for all, and one
// that does not get on any more is found. Plain values; the text functions are pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"

namespace refrain {

struct StartProgress {
  int32_t rank = 0;  // the one furthest behind
  int32_t ranks = 1;
  ipc::Progress progress;
};

// "rank 1: capturing graphs 12/86 (FULL 8)"
std::string progress_line(const StartProgress& progress);
// The same with a bar of `width` characters in front, for a terminal (no line end).
std::string progress_bar(const StartProgress& progress, int width);

// Collects the ranks' reports; tells of a change worth showing: another phase, another hundredth.
class StartBoard {
 public:
  explicit StartBoard(int32_t ranks);
  std::optional<StartProgress> report(int32_t rank, ipc::Progress progress);
  StartProgress slowest() const;
  StartProgress of(int32_t rank) const;

  // The rank has come to another point of its start; from now on it has work to do, or waits for
  // others.
  void moved(int32_t rank, TimePoint now, bool works);
  void restart(TimePoint now);  // the time of all begins anew
  // Ranks that have not moved since `before` though they wait for nobody: those that load weights
  // and, when all are here, those at work that are furthest behind.
  std::vector<int32_t> stuck(TimePoint before) const;

 private:
  struct Rank {
    ipc::Progress progress;
    bool here = false, works = false;
    TimePoint moved;
  };
  std::vector<Rank> ranks_;
  std::string shown_;
};

}  // namespace refrain
