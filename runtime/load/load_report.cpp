// Figures as JSON and as a table, in vLLM's words.

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "runtime/base/json.h"
#include "runtime/load/load_figures.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

struct Spread {
  double mean = 0, median = 0, deviation = 0;
};

Spread spread_of(const std::vector<double>& samples) {
  Spread spread;
  if (samples.empty()) return spread;
  const auto count = static_cast<double>(samples.size());
  spread.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  for (const double sample : samples) {
    spread.deviation += (sample - spread.mean) * (sample - spread.mean) / count;
  }
  spread.deviation = std::sqrt(spread.deviation);
  spread.median = sample_at(samples, 0.5);
  return spread;
}

double a_second(int64_t count, const LoadFigures& figures) {
  return figures.duration > 0 ? static_cast<double>(count) / figures.duration : 0;
}

bool is_shown(const LoadMetric& metric, const LoadOptions& options) {
  return std::ranges::count(options.percentile_metrics, metric.key) > 0;
}

// JSON has no infinity.
Json rate_json(double rate) { return std::isfinite(rate) ? Json(rate) : Json("inf"); }

std::string title(const std::string& text, char fill) {
  constexpr size_t kWidth = 50;
  const size_t rest = kWidth - std::min(kWidth, text.size());
  return std::string((rest + 1) / 2, fill) + text + std::string(rest / 2, fill) + "\n";
}

}  // namespace

Json figures_json(const LoadFigures& figures, const LoadOptions& options) {
  Json errors = Json::object();
  for (const auto& [what, count] : figures.errors) errors[what] = count;
  Json json = {
      {"backend", options.is_chat() ? "openai-chat" : "openai"},
      {"base_url", options.base_url},
      {"endpoint", options.endpoint},
      {"model_id", options.model},
      {"dataset_name", options.dataset},
      {"num_prompts", options.num_prompts},
      {"request_rate", rate_json(options.request_rate)},
      {"burstiness", options.burstiness},
      {"max_concurrency", options.max_concurrency > 0 ? Json(options.max_concurrency) : Json()},
      {"seed", options.seed},
      {"duration", figures.duration},
      {"completed", figures.completed},
      {"failed", figures.failed},
      {"error_counts", std::move(errors)},
      {"short_answers", figures.short_answers},
      {"total_input_tokens", figures.input_tokens},
      {"total_output_tokens", figures.output_tokens},
      {"request_throughput", a_second(figures.completed, figures)},
      {"request_goodput", options.goodput.empty() ? Json() : Json(a_second(figures.good, figures))},
      {"output_throughput", a_second(figures.output_tokens, figures)},
      {"total_token_throughput", a_second(figures.input_tokens + figures.output_tokens, figures)},
      {"max_output_tokens_per_s", figures.peak_output_tokens},
      {"max_concurrent_requests", figures.peak_concurrency}};
  if (!options.ramp_up_strategy.empty()) {
    json["ramp_up_strategy"] = options.ramp_up_strategy;
    json["ramp_up_start_rps"] = options.ramp_up_start_rps;
    json["ramp_up_end_rps"] = options.ramp_up_end_rps;
  }
  if (!options.goodput.empty()) json["goodput"] = options.goodput;
  for (const LoadMetric& metric : figures.metrics) {
    if (!is_shown(metric, options)) continue;
    const Spread spread = spread_of(metric.samples);
    json[fmt::format("mean_{}_ms", metric.key)] = spread.mean;
    json[fmt::format("median_{}_ms", metric.key)] = spread.median;
    json[fmt::format("std_{}_ms", metric.key)] = spread.deviation;
    for (const double percent : options.metric_percentiles) {
      json[fmt::format("p{}_{}_ms", percent, metric.key)] =
          sample_at(metric.samples, percent / 100);
    }
  }
  return json;
}

void add_details(Json& json, const std::vector<LoadRecord>& records) {
  for (const char* key :
       {"input_lens", "output_lens", "start_times", "ttfts", "itls", "e2els", "errors"}) {
    json[key] = Json::array();
  }
  for (const LoadRecord& record : records) {
    json["input_lens"].push_back(record.input_tokens);
    json["output_lens"].push_back(record.output_tokens);
    json["start_times"].push_back(record.start);
    json["ttfts"].push_back(record.ttft);
    json["itls"].push_back(record.itl);
    json["e2els"].push_back(record.end);
    json["errors"].push_back(record.error);
  }
}

std::string figures_table(const LoadFigures& figures, const LoadOptions& options) {
  std::string table = title(" Serving Benchmark Result ", '=');
  const auto count = [&](const std::string& name, int64_t value) {
    table += fmt::format("{:<40} {:<10}\n", name + ":", value);
  };
  const auto number = [&](const std::string& name, double value) {
    table += fmt::format("{:<40} {:<10.2f}\n", name + ":", value);
  };
  count("Successful requests", figures.completed);
  count("Failed requests", figures.failed);
  if (options.ignore_eos) count("Answers shorter than asked for", figures.short_answers);
  if (options.max_concurrency > 0) count("Maximum request concurrency", options.max_concurrency);
  if (std::isfinite(options.request_rate)) {
    number("Request rate configured (RPS)", options.request_rate);
  }
  number("Benchmark duration (s)", figures.duration);
  count("Total input tokens", figures.input_tokens);
  count("Total generated tokens", figures.output_tokens);
  number("Request throughput (req/s)", a_second(figures.completed, figures));
  if (!options.goodput.empty()) {
    number("Request goodput (req/s)", a_second(figures.good, figures));
  }
  number("Output token throughput (tok/s)", a_second(figures.output_tokens, figures));
  count("Peak output token throughput (tok/s)", figures.peak_output_tokens);
  count("Peak concurrent requests", figures.peak_concurrency);
  number("Total token throughput (tok/s)",
         a_second(figures.input_tokens + figures.output_tokens, figures));
  for (const LoadMetric& metric : figures.metrics) {
    if (!is_shown(metric, options)) continue;
    const Spread spread = spread_of(metric.samples);
    table += title(metric.title, '-');
    number(fmt::format("Mean {} (ms)", metric.name), spread.mean);
    number(fmt::format("Median {} (ms)", metric.name), spread.median);
    for (const double percent : options.metric_percentiles) {
      number(fmt::format("P{} {} (ms)", percent, metric.name),
             sample_at(metric.samples, percent / 100));
    }
  }
  table += std::string(50, '=') + "\n";
  for (const auto& [what, times] : figures.errors) {
    table += fmt::format("failed {} times: {}\n", times, what);
  }
  return table;
}

}  // namespace refrain
