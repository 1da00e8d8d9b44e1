#pragma once
// Figures of a benchmark: samples to median and percentiles, rows to a table or JSON. Pure.

#include <string>
#include <vector>

#include "runtime/server/json_fields.h"

namespace refrain {

double percentile(std::vector<double> samples, double share);  // share in [0, 1]; nearest rank

struct BenchCase {
  std::string name;  // "decode", "prefill", …
  std::string unit;  // "ms_per_step", "tokens_per_s", …
  std::vector<double> samples;
  double achieved = 0;  // in the limit's unit
  double limit = 0;     // 0: none known; the JSON then says null and repeats the median
  std::string limit_source;
  Json more = Json::object();  // model, device, tp, mode, batch, context, …
};

// Every case has every field that readers rely on (docs/benchmarks/README.md); null where one says
// nothing, such as the batch of a capture.
Json case_json(const BenchCase& bench_case);
std::string case_table(const std::vector<BenchCase>& cases);
// To standard output: the table, or a list of JSON objects.
void print_cases(const std::vector<BenchCase>& cases, bool json);

// Bytes a second that `threads` threads read from memory together, measured now.
double measure_read_bandwidth(int threads);

}  // namespace refrain
