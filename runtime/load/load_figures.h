#pragma once
// What came of a load, request by request, and the figures made from it: vLLM's names and
// definitions. Pure.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/load/load_options.h"

namespace refrain {

struct LoadRecord {
  double start = 0;        // seconds after the load's beginning
  double ttft = 0;         // seconds after the start; 0: no token came
  double end = 0;          // the last token, seconds after the start
  std::vector<float> itl;  // seconds between events that carried tokens
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t asked_tokens = 0;
  std::string error;  // empty: it went well

  bool ok() const { return error.empty(); }
  // Seconds a token after the first; 0 of a single token.
  double tpot() const {
    return output_tokens > 1 ? (end - ttft) / static_cast<double>(output_tokens - 1) : 0;
  }
};

// The sample at floor(share * count) of the ascending ones, 0 of none: a time that was measured, no
// mean of two.
double sample_at(const std::vector<double>& ascending, double share);

struct LoadMetric {
  std::string key, name;        // "ttft", "TTFT"
  std::string title;            // "Time to First Token"
  std::vector<double> samples;  // milliseconds, ascending
};

struct LoadFigures {
  double duration = 0;  // seconds, to the last answer's end
  int64_t completed = 0, failed = 0;
  int64_t short_answers = 0;  // fewer tokens than asked for
  int64_t good = 0;           // of the completed: within every goal of --goodput
  int64_t input_tokens = 0, output_tokens = 0;
  int64_t peak_output_tokens = 0;  // in one second
  int64_t peak_concurrency = 0;
  std::map<std::string, int64_t> errors;  // what was said, how often
  std::vector<LoadMetric> metrics;        // ttft, tpot, itl, e2el
};

LoadFigures load_figures(const std::vector<LoadRecord>& records, double duration,
                         const LoadOptions& options);

// A point for each second: tokens that came in it and requests that were under way in it.
struct LoadSecond {
  double output_tokens = 0;
  int64_t requests = 0;
};
std::vector<LoadSecond> load_timeline(const std::vector<LoadRecord>& records, double duration);

nlohmann::json figures_json(const LoadFigures& figures, const LoadOptions& options);
// Every request's times, for --save-detailed: lists of the same length.
void add_details(nlohmann::json& json, const std::vector<LoadRecord>& records);
std::string figures_table(const LoadFigures& figures, const LoadOptions& options);

}  // namespace refrain
