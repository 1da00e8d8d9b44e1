#include "runtime/sched/draft_control.h"

#include <algorithm>
#include <bit>

namespace refrain {

DraftCounts DraftCounts::operator+(const DraftCounts& other) const {
  DraftCounts sum = *this;
  sum.rows += other.rows;
  sum.tokens += other.tokens;
  sum.forced += other.forced;
  for (size_t i = 0; i < accepted.size(); ++i) sum.accepted[i] += other.accepted[i];
  return sum;
}

size_t DraftControl::size_of(int32_t rows) {
  const auto width = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(rows, 1))));
  return std::min(width, kSizes - 1);
}

bool DraftControl::wants_drafts(int32_t rows) {
  Size& size = sizes_[size_of(rows)];
  const Kind &without = size.kinds[0], &with = size.kinds[1];
  if (with.seen < kLearn) return true;
  if (without.seen < kLearn) return false;
  const bool better = with.rate() > without.rate();
  if (++size.since_probe >= kProbeAfter + kProbe) size.since_probe = 0;
  return size.since_probe >= kProbeAfter ? !better : better;
}

void DraftControl::measured(bool drafts, int32_t rows, int64_t tokens, double seconds) {
  if (seconds <= 0) return;
  Kind& kind = sizes_[size_of(rows)].kinds[drafts ? 1 : 0];
  kind.tokens = kKept * kind.tokens + static_cast<double>(tokens);
  kind.seconds = kKept * kind.seconds + seconds;
  kind.seen = std::min(kind.seen + 1, kLearn);
}

}  // namespace refrain
