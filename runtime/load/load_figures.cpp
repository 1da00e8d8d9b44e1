#include "runtime/load/load_figures.h"

#include <algorithm>
#include <cmath>

namespace refrain {
namespace {

constexpr double kMs = 1e3;

void add_request(const LoadRecord& record, std::vector<LoadMetric>& metrics) {
  metrics[0].samples.push_back(record.ttft * kMs);
  if (record.output_tokens > 1) metrics[1].samples.push_back(record.tpot() * kMs);
  for (const float gap : record.itl) metrics[2].samples.push_back(gap * kMs);
  metrics[3].samples.push_back(record.end * kMs);
}

bool within_goals(const LoadRecord& record, const std::map<std::string, double>& goals) {
  const std::map<std::string, double> times = {
      {"ttft", record.ttft}, {"tpot", record.tpot()}, {"e2el", record.end}};
  return std::ranges::all_of(
      goals, [&](const auto& goal) { return times.at(goal.first) * kMs <= goal.second; });
}

int64_t peak_concurrency(const std::vector<LoadRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const LoadRecord& record : records) {
    if (!record.ok()) continue;
    changes.emplace_back(record.start, 1);
    changes.emplace_back(record.start + record.end, -1);
  }
  std::ranges::sort(changes);  // an end before a start at the same time
  int64_t now = 0, peak = 0;
  for (const auto& [at, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

}  // namespace

double sample_at(const std::vector<double>& ascending, double share) {
  if (ascending.empty()) return 0;
  const auto rank = static_cast<size_t>(share * static_cast<double>(ascending.size()));
  return ascending[std::min(rank, ascending.size() - 1)];
}

LoadFigures load_figures(const std::vector<LoadRecord>& records, double duration,
                         const LoadOptions& options) {
  LoadFigures figures;
  figures.duration = duration;
  figures.metrics = {{"ttft", "TTFT", "Time to First Token", {}},
                     {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", {}},
                     {"itl", "ITL", "Inter-token Latency", {}},
                     {"e2el", "E2EL", "End-to-end Latency", {}}};
  for (const LoadRecord& record : records) {
    if (!record.ok()) {
      ++figures.failed;
      ++figures.errors[record.error];
      continue;
    }
    ++figures.completed;
    figures.short_answers += record.output_tokens < record.asked_tokens ? 1 : 0;
    figures.good += within_goals(record, options.goodput) ? 1 : 0;
    figures.input_tokens += record.input_tokens;
    figures.output_tokens += record.output_tokens;
    add_request(record, figures.metrics);
  }
  for (LoadMetric& metric : figures.metrics) std::ranges::sort(metric.samples);
  for (const LoadSecond& second : load_timeline(records, duration)) {
    figures.peak_output_tokens =
        std::max<int64_t>(figures.peak_output_tokens, std::llround(second.output_tokens));
  }
  figures.peak_concurrency = peak_concurrency(records);
  return figures;
}

std::vector<LoadSecond> load_timeline(const std::vector<LoadRecord>& records, double duration) {
  std::vector<LoadSecond> seconds(static_cast<size_t>(std::max(1.0, std::ceil(duration))));
  const auto second_of = [&](double at) {
    return std::min(static_cast<size_t>(std::max(at, 0.0)), seconds.size() - 1);
  };
  for (const LoadRecord& record : records) {
    if (!record.ok()) continue;
    // An event may carry several tokens: all events of a request count for the same.
    const double tokens =
        static_cast<double>(record.output_tokens) / static_cast<double>(record.itl.size() + 1);
    double at = record.start + record.ttft;
    seconds[second_of(at)].output_tokens += tokens;
    for (const float gap : record.itl) {
      at += gap;
      seconds[second_of(at)].output_tokens += tokens;
    }
    const size_t last = second_of(record.start + record.end);
    for (size_t i = second_of(record.start); i <= last; ++i) ++seconds[i].requests;
  }
  return seconds;
}

}  // namespace refrain
