#pragma once
// How far a group's start is, for people: the rank that is furthest behind stands for all. Plain
// values; the text functions are pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"

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

 private:
  std::vector<ipc::Progress> ranks_;
  std::string shown_;
};

}  // namespace refrain
