#pragma once
// How KV blocks that move between groups fare, as statistics tell of it. A plain record.

#include <cstdint>

namespace refrain {

// One transfer that is done.
struct MovedBlocks {
  int64_t bytes = 0;
  int32_t tokens = 0;  // whose state they hold
  // That moving added: until the last rank had all, from the order on, or from the end of the
  // prompt where the order came before it.
  double seconds = 0;
};

struct TransferCounts {
  uint64_t running = 0, quarantined = 0;  // now; quarantined: given up, and perhaps still written
  uint64_t done = 0, failed = 0;          // failed: given up, those of requests that ended excepted
  uint64_t bytes = 0;                     // that ranks have pulled
  uint64_t early_bytes = 0;               // of them, while the prompt's step still ran
};

inline TransferCounts operator+(const TransferCounts& a, const TransferCounts& b) {
  return {a.running + b.running, a.quarantined + b.quarantined,
          a.done + b.done,       a.failed + b.failed,
          a.bytes + b.bytes,     a.early_bytes + b.early_bytes};
}

}  // namespace refrain
