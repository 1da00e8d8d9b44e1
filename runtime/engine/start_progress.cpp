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
    case ipc::StartPhase::kProfile:
      return "measuring memory";
    case ipc::StartPhase::kCapture:
      return "capturing graphs";
    case ipc::StartPhase::kReady:
      return "ready";
  }
  REFRAIN_CHECK(false, "no such start phase: {}", static_cast<int>(phase));
}

// Hundredths done of the phase.
int64_t percent(const ipc::Progress& progress) {
  if (progress.total <= 0) return 0;
  const double share =
      static_cast<double>(progress.done) / static_cast<double>(progress.total) * 100.0;
  return static_cast<int64_t>(std::clamp(share, 0.0, 100.0));
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
  for (ipc::Progress& progress : ranks_) progress.phase = ipc::StartPhase::kConnect;
}

StartProgress StartBoard::slowest() const {
  const auto behind = [](const ipc::Progress& a, const ipc::Progress& b) {
    return std::pair(a.phase, percent(a)) < std::pair(b.phase, percent(b));
  };
  const auto slowest = std::min_element(ranks_.begin(), ranks_.end(), behind);
  return {static_cast<int32_t>(slowest - ranks_.begin()), static_cast<int32_t>(ranks_.size()),
          *slowest};
}

std::optional<StartProgress> StartBoard::report(int32_t rank, ipc::Progress progress) {
  ranks_[static_cast<size_t>(rank)] = std::move(progress);
  const StartProgress now = slowest();
  std::string key = fmt::format("{} {} {}", now.rank, static_cast<int>(now.progress.phase),
                                percent(now.progress));
  if (key == shown_) return std::nullopt;
  shown_ = std::move(key);
  return now;
}

}  // namespace refrain
