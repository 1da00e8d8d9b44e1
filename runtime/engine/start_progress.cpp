#include "runtime/engine/start_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

const char* phase_words(ipc::StartPhase phase) {
  switch (phase) {
    case ipc::StartPhase::kConnect:
      return "connecting";
    case ipc::StartPhase::kLoadWeights:
      return "loading weights";
    case ipc::StartPhase::kCapture:
      return "capturing graphs";
    case ipc::StartPhase::kReady:
      return "ready";
  }
  REFRAIN_CHECK(false, "no such start phase: {}", static_cast<int>(phase));
}

// Of the phase.
double share_done(const ipc::Progress& progress) {
  if (progress.total <= 0) return 0;
  const double share = static_cast<double>(progress.done) / static_cast<double>(progress.total);
  return std::clamp(share, 0.0, 1.0);
}

int64_t percent(const ipc::Progress& progress) {
  return static_cast<int64_t>(share_done(progress) * 100);
}

std::pair<ipc::StartPhase, double> place(const ipc::Progress& progress) {
  return {progress.phase, share_done(progress)};
}

}  // namespace

std::string progress_line(const StartProgress& progress) {
  const ipc::Progress& report = progress.progress;
  std::string line = progress.ranks > 1 ? fmt::format("rank {}: ", progress.rank) : std::string();
  line += phase_words(report.phase);
  if (report.phase == ipc::StartPhase::kLoadWeights && report.total >= kMegabyte) {
    line += fmt::format(" {}/{} MB", report.done / kMegabyte, report.total / kMegabyte);
  } else if (report.total > 0) {
    line += fmt::format(" {}/{}", report.done, report.total);
  }
  if (!report.detail.empty()) line += fmt::format(" ({})", report.detail);
  return line;
}

std::string progress_bar(const StartProgress& progress, int width) {
  const auto filled = static_cast<size_t>(percent(progress.progress) * width / 100);
  std::string bar(static_cast<size_t>(width), '-');
  std::fill_n(bar.begin(), static_cast<ptrdiff_t>(filled), '#');
  return fmt::format("[{}] {}", bar, progress_line(progress));
}

StartBoard::StartBoard(int32_t ranks) : ranks_(static_cast<size_t>(ranks)) {
  for (Rank& rank : ranks_) rank.progress.phase = ipc::StartPhase::kConnect;
}

StartProgress StartBoard::slowest() const {
  const auto slowest =
      std::ranges::min_element(ranks_, {}, [](const Rank& rank) { return place(rank.progress); });
  return of(static_cast<int32_t>(slowest - ranks_.begin()));
}

StartProgress StartBoard::of(int32_t rank) const {
  return {rank, static_cast<int32_t>(ranks_.size()), ranks_[static_cast<size_t>(rank)].progress};
}

void StartBoard::moved(int32_t rank, TimePoint now, bool works) {
  Rank& mover = ranks_[static_cast<size_t>(rank)];
  mover.here = true;
  mover.moved = now;
  mover.works = works;
}

void StartBoard::restart(TimePoint now) {
  for (Rank& rank : ranks_) rank.moved = now;
}

std::vector<int32_t> StartBoard::stuck(TimePoint before) const {
  std::optional<std::pair<ipc::StartPhase, double>> last;
  for (const Rank& rank : ranks_)
    if (rank.works && (!last || place(rank.progress) < *last)) last = place(rank.progress);
  const bool all_here = std::ranges::all_of(ranks_, &Rank::here);
  std::vector<int32_t> all;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    const bool loads = rank.progress.phase == ipc::StartPhase::kLoadWeights;
    const bool behind = all_here && rank.works && place(rank.progress) == *last;
    if (rank.works && rank.moved <= before && (loads || behind))
      all.push_back(static_cast<int32_t>(i));
  }
  return all;
}

std::optional<StartProgress> StartBoard::report(int32_t rank, ipc::Progress progress) {
  ranks_[static_cast<size_t>(rank)].progress = std::move(progress);
  const StartProgress now = slowest();
  std::string key = fmt::format("{} {} {}", now.rank, static_cast<int>(now.progress.phase),
                                percent(now.progress));
  if (key == shown_) return std::nullopt;
  shown_ = std::move(key);
  return now;
}

}  // namespace refrain
