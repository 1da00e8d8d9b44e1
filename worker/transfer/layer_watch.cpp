#include "worker/transfer/layer_watch.h"

#include <algorithm>
#include <atomic>

#include "kernels/core/layer_flag.h"

namespace refrain::worker {

std::vector<Read> LayerWatch::take_passed() {
  std::vector<Read> passed;
  std::erase_if(waiting_, [&](const Read& read) {
    // What the layer keeps is read after its flag.
    const std::atomic_ref flag(flags_.at(read.region));
    if (!kernels::has_passed(flag.load(std::memory_order_acquire), step_)) return false;
    passed.push_back(read);
    return true;
  });
  return passed;
}

}  // namespace refrain::worker
