#include "worker/dispatch/splitting_ops.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace refrain::worker {

Status check_splitting_ops(const std::vector<std::string>& splitting_ops) {
  for (const std::string& name : splitting_ops)
    if (std::find(kOpNames.begin(), kOpNames.end(), name) == kOpNames.end())
      return fail_field("--splitting-ops", "--splitting-ops: {} is not an op; the ops are {}", name,
                        fmt::join(kOpNames, ", "));
  return {};
}

}  // namespace refrain::worker
