#pragma once
// A benchmark's cases on their way out of a rank: a line of JSON each.

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "worker/bench/limits.h"

namespace refrain::worker {

struct RankCase {
  std::string unit;             // of the samples
  std::vector<double> samples;  // not empty
  double achieved = 0, limit = 0;
  std::string limit_source;
  nlohmann::json more = nlohmann::json::object();
};

double median(std::vector<double> samples);

class CaseWriter {
 public:
  CaseWriter(const RankOptions& options, const std::string& device_name);
  void write(RankCase one) const;  // throws FatalError when nobody reads
  // A launch of `bytes` and `flops`: milliseconds, GB/s, TFLOP/s, and the tighter of the limits.
  void write_launch(const Limits& limits, const std::vector<double>& seconds, double bytes,
                    double flops, nlohmann::json more) const;

 private:
  std::string kind_;
  int fd_;
  nlohmann::json common_;
};

}  // namespace refrain::worker
