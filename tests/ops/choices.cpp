// The devices on which this program runs the op tests: the host's instruction sets.
#include "tests/ops/harness.h"

namespace refrain::kernels {

std::vector<HarnessChoice> all_harnesses() { return host_harnesses(); }

}  // namespace refrain::kernels
