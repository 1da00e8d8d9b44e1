#include "worker/runner/counter_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace refrain::worker {

CounterCheck::CounterCheck(Device& device, std::vector<KernelCounters> counters)
    : counters_(std::move(counters)) {
  size_t count = 0;
  for (const KernelCounters& owned : counters_) count += owned.count;
  for (auto& pinned : pinned_) {
    pinned = device.allocate_pinned(std::max<size_t>(1, count * sizeof(uint32_t)));
  }
}

void CounterCheck::copy(Stream& stream, int flight) {
  auto* to = static_cast<uint32_t*>(pinned_[static_cast<size_t>(flight)]->data());
  for (const KernelCounters& owned : counters_) {
    stream.copy(to, owned.data, owned.count * sizeof(uint32_t));
    to += owned.count;
  }
}

void CounterCheck::check(StepId step, int flight) const {
  const auto* begin = static_cast<const uint32_t*>(pinned_[static_cast<size_t>(flight)]->data());
  for (const KernelCounters& owned : counters_) {
    const uint32_t* end = begin + owned.count;
    const uint32_t* left = std::find_if(begin, end, [](uint32_t count) { return count != 0; });
    if (left != end) {
      throw DeviceError(
          fmt::format("step {}: the kernels of {} left count {} at {} where all are zero between "
                      "steps; what they write from now on is wrong",
                      step, owned.owner, left - begin, *left));
    }
    begin = end;
  }
}

}  // namespace refrain::worker
