#include "tests/sim/succession.h"

#include <fmt/format.h>

#include <algorithm>

namespace refrain::sim {

void Succession::coordinator_started(TimePoint now) {
  if (promised_ && adoptable_ && gone_at_) due_ = std::max(now, *gone_at_ + notice_) + kReadyWithin;
}

void Succession::group_ready(TimePoint now, const std::vector<const SimDevice*>& ranks) {
  const auto kept =
      std::ranges::count_if(ranks, [](const SimDevice* rank) { return rank->kept(); });
  const bool adopted = kept == std::ssize(ranks);
  if (kept > 0 && !adopted)
    violations.push_back(
        fmt::format("{} of {} ranks of a ready group were adopted (R-10)", kept, ranks.size()));
  for (const SimDevice* rank : ranks) {
    if (rank->epoch() != ranks.front()->epoch())
      violations.push_back("the ranks of a ready group are of different epochs");
    if (rank->group() != ranks.front()->group())
      violations.push_back("the ranks of a ready group hold different groups");
  }
  adoptions_ += adopted ? 1 : 0;
  if (due_ && !adopted)
    violations.push_back("workers that were ready were not adopted by the next coordinator (R-10)");
  if (due_ && now > *due_)
    violations.push_back(fmt::format("adopted {:.1f} s too late (R-10)",
                                     std::chrono::duration<double>(now - *due_).count()));
  due_.reset();
  gone_at_.reset();
  adoptable_ = true;
}

}  // namespace refrain::sim
