#pragma once
// Whether a step's decodes carry drafts: where that gives more tokens a second, as measured by the
// number of requests. Before both kinds of steps are known, drafts go first; the kind that lost is
// tried again now and then, since texts change. Pure; owned by the scheduler.

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/protocol/limits.h"

namespace refrain {

// What speculation came to.
struct DraftCounts {
  uint64_t rows = 0;                                 // that drafts were proposed for
  uint64_t tokens = 0;                               // proposed
  std::array<uint64_t, ipc::kMaxDrafts> accepted{};  // by their place among the drafts
  uint64_t forced = 0;  // besides: tokens of forced text that took no step of their own
  DraftCounts operator+(const DraftCounts& other) const;
};

class DraftControl {
 public:
  // Of the next step, of so many decodes.
  bool wants_drafts(int32_t rows);
  // A step of so many decodes, and nothing else, gave so many tokens in so many seconds.
  void measured(bool drafts, int32_t rows, int64_t tokens, double seconds);

 private:
  static constexpr int kLearn = 8;        // steps of a kind before it is compared
  static constexpr int kProbeAfter = 32;  // steps of the better kind; then the other one's
  static constexpr int kProbe = 2;        // steps
  static constexpr double kKept = 0.9;    // of what earlier steps count, with each further one
  struct Kind {
    double tokens = 0, seconds = 0;
    int seen = 0;
    double rate() const { return tokens / seconds; }
  };
  struct Size {
    std::array<Kind, 2> kinds;  // without, with drafts
    int since_probe = 0;
  };
  static constexpr size_t kSizes = 20;
  static size_t size_of(int32_t rows);
  std::array<Size, kSizes> sizes_;  // by the power of two that holds the rows
};

}  // namespace refrain
