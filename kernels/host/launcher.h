#pragma once
// How host kernels are launched. A kernel is a plain function run by every thread of a team on a
// copy of its arguments; the launcher (worker/device/host) runs it at once or, while capturing,
// records it. Every thread returns from one kernel before any starts the next.

#include <cstddef>
#include <type_traits>

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

// One thread's view of the team that runs a kernel. Valid during the call only.
struct Team {
  int rank = 0;  // this thread, 0 … size-1
  int size = 1;
  std::byte* scratch = nullptr;  // this thread's own scratch memory, 64-byte aligned
  size_t scratch_bytes = 0;      // at least kTeamScratchBytes
};
inline constexpr size_t kTeamScratchBytes = size_t{4} << 20;

using HostFunction = void (*)(const void* args, const Team& team);

class HostLauncher {
 public:
  virtual ~HostLauncher() = default;
  // Copies `bytes` of plain arguments; `name` must outlive the launcher (a literal). `single`:
  // run by thread 0 alone, which then sees a team of one.
  virtual void launch(HostFunction function, const void* args, size_t bytes, const char* name,
                      bool single) = 0;
};

// Launches `kernel` (void(const Args&, const Team&)) on the stream.
template <auto kernel, class Args>
void launch(StreamRef stream, const Args& args, const char* name, bool single = false) {
  static_assert(std::is_trivially_copyable_v<Args>);
  static_cast<HostLauncher*>(stream.native)
      ->launch(
          [](const void* raw, const Team& team) { kernel(*static_cast<const Args*>(raw), team); },
          &args, sizeof(Args), name, single);
}

// A half-open range of work.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// This thread's share of `count` units, handed out in multiples of `grain`.
inline Range share_of(int64_t count, const Team& team, int64_t grain = 1) {
  const int64_t units = (count + grain - 1) / grain;
  const int64_t begin = units * team.rank / team.size * grain;
  const int64_t end = units * (team.rank + 1) / team.size * grain;
  return {begin < count ? begin : count, end < count ? end : count};
}

// Live rows of a launch.
inline int32_t live_rows(const Rows& rows) {
  return rows.live == nullptr || *rows.live > rows.padded ? rows.padded : *rows.live;
}

}  // namespace refrain::kernels
