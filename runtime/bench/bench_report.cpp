#include "runtime/bench/bench_report.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "runtime/base/check.h"

namespace refrain {

double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double rank = std::ceil(share * static_cast<double>(samples.size())) - 1;
  return samples[static_cast<size_t>(std::max(rank, 0.0))];
}

Json case_json(const BenchCase& bench_case) {
  Json json = bench_case.more;
  for (const char* key : {"model", "device", "tp", "mode", "batch", "context"}) {
    if (!json.contains(key)) json[key] = nullptr;
  }
  json["case"] = bench_case.name;
  json[bench_case.unit] = percentile(bench_case.samples, 0.5);
  json["samples"] = bench_case.samples;
  json["runs"] = bench_case.samples.size();
  json["min"] = percentile(bench_case.samples, 0.0);
  json["median"] = percentile(bench_case.samples, 0.5);
  json["p99"] = percentile(bench_case.samples, 0.99);
  json["unit"] = bench_case.unit;
  const bool limited = bench_case.limit > 0;
  json["achieved"] = limited ? bench_case.achieved : percentile(bench_case.samples, 0.5);
  json["limit"] = limited ? Json(bench_case.limit) : Json(nullptr);
  json["limit_source"] = limited ? bench_case.limit_source : "none known";
  return json;
}

std::string case_table(const std::vector<BenchCase>& cases) {
  auto text_of_json = [](const Json& more, const char* key) {
    const auto at = more.find(key);
    if (at == more.end()) return std::string("-");
    return at->is_string() ? at->get<std::string>() : at->dump();
  };
  // What a case measured: the linear or message where there are several, else the graph mode.
  const auto subject = [&](const Json& more) {
    return text_of_json(more, more.contains("what") ? "what" : "mode");
  };
  size_t width = 18;
  for (const BenchCase& row : cases) width = std::max(width, subject(row.more).size());
  std::string table =
      fmt::format("{:<10} {:<{}} {:>5} {:>7} {:>10} {:>10} {:>10} {:>12} {:>9}\n", "case", "what",
                  width, "batch", "context", "median", "min", "p99", "unit", "of limit");
  for (const BenchCase& row : cases) {
    const std::string share =
        row.limit > 0 ? fmt::format("{:.1f} %", 100 * row.achieved / row.limit) : "-";
    table +=
        fmt::format("{:<10} {:<{}} {:>5} {:>7} {:>10.3f} {:>10.3f} {:>10.3f} {:>12} {:>9}",
                    row.name, subject(row.more), width, text_of_json(row.more, "batch"),
                    text_of_json(row.more, "context"), percentile(row.samples, 0.5),
                    percentile(row.samples, 0.0), percentile(row.samples, 0.99), row.unit, share);
    for (const auto& [key, unit] : {std::pair{"gb_s", "GB/s"}, std::pair{"tflop_s", "TFLOP/s"}}) {
      const auto at = row.more.find(key);
      if (at != row.more.end()) table += fmt::format(" {:>8.3f} {}", at->get<double>(), unit);
    }
    table += '\n';
  }
  return table;
}

void print_cases(const std::vector<BenchCase>& cases, bool json) {
  Json list = Json::array();
  for (const BenchCase& row : cases) list.push_back(case_json(row));
  std::fputs((json ? list.dump(2) + "\n" : case_table(cases)).c_str(), stdout);
}

double measure_read_bandwidth(int threads) {
  // Looking for a byte that is not there reads every byte, as fast as the C library can.
  constexpr size_t kBytes = size_t{512} << 20;  // past every cache
  const std::vector<char> memory(kBytes, 1);
  const size_t share = kBytes / static_cast<size_t>(threads);
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::atomic<bool> found{false};
    std::vector<std::thread> team;
    team.reserve(static_cast<size_t>(threads));
    const auto begun = std::chrono::steady_clock::now();
    for (int t = 0; t < threads; ++t) {
      team.emplace_back([&, from = memory.data() + share * static_cast<size_t>(t)] {
        if (std::memchr(from, 2, share) != nullptr) found = true;
      });
    }
    for (std::thread& thread : team) thread.join();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    REFRAIN_CHECK(!found, "memory that was just filled with ones holds a two");
    best = std::max(best, static_cast<double>(kBytes) / seconds);
  }
  return best;
}

}  // namespace refrain
