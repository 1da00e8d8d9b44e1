#include "worker/transfer/layer_watch.h"

#include <algorithm>
#include <atomic>

#include "kernels/core/layer_flag.h"

namespace refrain::worker {

std::vector<Read> LayerWatch::take_passed() {
  std::atomic_thread_fence(std::memory_order_acquire);  // what follows is read after the flags
  std::vector<Read> passed;
  std::erase_if(waiting_, [&](const Read& read) {
    if (!kernels::has_passed(flags_.at(read.region), step_)) return false;
    passed.push_back(read);
    return true;
  });
  return passed;
}

}  // namespace refrain::worker
