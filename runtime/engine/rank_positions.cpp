#include "runtime/engine/rank_positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace refrain {

void RankPositions::heard(int32_t rank, TimePoint now) {
  ranks_[static_cast<size_t>(rank)].heard = now;
}

bool RankPositions::report(int32_t rank, const ipc::Position& position, TimePoint now) {
  Rank& known = ranks_[static_cast<size_t>(rank)];
  const auto place = [](const ipc::Position& each) {
    return std::tuple(each.last_step, each.launches);
  };
  const bool moved = !known.position || place(*known.position) != place(position);
  if (moved) known.progress = now;
  const auto before = std::exchange(known.position, position);
  // What is submitted only says nothing of the device.
  return before && moved && (position.counts_launches || position.last_step != before->last_step);
}

void RankPositions::restart(TimePoint now) {
  for (Rank& rank : ranks_) rank.heard = rank.progress = now;
}

std::optional<TimePoint> RankPositions::last_progress() const {
  TimePoint last{};
  for (const Rank& rank : ranks_) {
    if (!rank.position || !rank.position->counts_launches) return std::nullopt;
    last = std::max(last, rank.progress);
  }
  return last;
}

bool RankPositions::blind() const {
  return !last_progress() &&
         std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.position.has_value(); });
}

std::vector<int32_t> RankPositions::laggards(const std::vector<int32_t>& ranks,
                                             TimePoint now) const {
  std::vector<int32_t> behind;
  for (const int32_t rank : ranks)
    if (silent(rank, now)) behind.push_back(rank);
  if (!behind.empty()) return behind;
  if (std::ranges::any_of(ranks, [this](int32_t rank) { return !at(rank).position; })) return ranks;
  const auto place = [this](int32_t rank) {
    return std::tuple(at(rank).position->last_step, at(rank).position->launches);
  };
  for (const int32_t rank : ranks) {
    if (!behind.empty() && place(rank) > place(behind.front())) continue;
    if (!behind.empty() && place(rank) < place(behind.front())) behind.clear();
    behind.push_back(rank);
  }
  return behind;
}

std::string RankPositions::text(TimePoint now) const {
  std::string text;
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
    const auto& position = at(rank).position;
    text += fmt::format("{}rank {} ", text.empty() ? "" : ", ", rank);
    if (!position) {
      text += "has told nothing";
    } else if (position->counts_launches) {
      text += fmt::format("is {} launches past step {}", position->launches, position->last_step);
    } else {
      text += fmt::format("is past step {} and has submitted {} more", position->last_step,
                          position->launches);
    }
    if (silent(rank, now))
      text += fmt::format(" and silent for {:.1f} s", seconds_between(at(rank).heard, now));
  }
  return text;
}

}  // namespace refrain
