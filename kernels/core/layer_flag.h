#pragma once
// A layer's flag: the last step that has written what the layer keeps, for readers beside the
// device while the step still runs. The number and its complement in one word: one that was read
// while it was written is seen to be none, and so is a zero. Pure; host and device.

#include <cstdint>

namespace refrain::kernels {

constexpr uint64_t layer_flag(uint32_t step) { return uint64_t{~step} << 32 | step; }

// Whether that step or a later one has passed the layer. Numbers wrap around: it is later by less
// than half of them.
constexpr bool has_passed(uint64_t flag, uint32_t step) {
  const auto last = static_cast<uint32_t>(flag);
  return flag == layer_flag(last) && last - step < uint32_t{1} << 31;
}

}  // namespace refrain::kernels
