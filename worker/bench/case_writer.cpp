#include "worker/bench/case_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/build_info.h"

namespace refrain::worker {

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[(samples.size() - 1) / 2];
}

CaseWriter::CaseWriter(const RankOptions& options, const std::string& device_name)
    : kind_(options.kind), fd_(options.result_fd) {
  common_ = {{"device", device_name.substr(0, device_name.find(' '))},
             {"device_name", device_name},
             {"tp", options.config.tensor_parallel_size},
             {"dtype", options.config.dtype},
             {"host_threads", options.host.threads},
             {"build", build_id()}};
}

void CaseWriter::write(RankCase one) const {
  nlohmann::json more = common_;
  more.update(one.more);
  const nlohmann::json json = {{"name", kind_},
                               {"unit", one.unit},
                               {"samples", one.samples},
                               {"achieved", one.achieved},
                               {"limit", one.limit},
                               {"limit_source", one.limit_source},
                               {"more", more}};
  const std::string line = json.dump() + "\n";
  // One write a line, so that the lines of ranks that share the pipe do not mix.
  const ssize_t written = ::write(fd_, line.data(), line.size());
  REFRAIN_CHECK(written == static_cast<ssize_t>(line.size()), "the case cannot be written: {}",
                written < 0 ? std::strerror(errno) : "the pipe took a part of it");
}

void CaseWriter::write_launch(const Limits& limits, const std::vector<double>& seconds,
                              double bytes, double flops, nlohmann::json more) const {
  RankCase one;
  one.unit = "ms";
  for (const double sample : seconds) one.samples.push_back(sample * 1e3);
  const double taken = median(seconds);
  const Bound bound = bound_of(limits, bytes, flops);
  one.achieved = (bound.by_memory ? bytes : flops) / taken;
  one.limit = bound.by_memory ? limits.read : limits.flops;
  one.limit_source = bound.by_memory ? limits.read_source : limits.flops_source;
  one.more = std::move(more);
  one.more["bound"] = bound.by_memory ? "memory" : "arithmetic";
  one.more["bytes"] = bytes;
  one.more["flops"] = flops;
  one.more["gb_s"] = bytes / taken * 1e-9;
  one.more["tflop_s"] = flops / taken * 1e-12;
  one.more["read_limit"] = limits.read;
  one.more["flops_limit"] = limits.flops;
  write(std::move(one));
}

}  // namespace refrain::worker
