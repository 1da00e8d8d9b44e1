#pragma once
// The limits that a device sets, measured in the run whose figures are compared with them.

#include <string>

#include "worker/bench/bench_device.h"

namespace refrain::worker {

// Bytes a second of copying from one half of the pool to the other, each byte counted once.
double measure_copy(BenchDevice& device, const Pool& pool);

struct LinearTypes {
  DType in = DType::kBFloat16, weight = DType::kBFloat16;
};

struct Limits {
  double read = 0;   // bytes a second: the better of a copy (read and written) and of one row times
                     // a weight as large as the pool
  double flops = 0;  // a second: the largest rate of square GEMMs, up to where one takes 0.1 s
  std::string read_source, flops_source;
};
Limits measure_limits(BenchDevice& device, const Pool& pool, LinearTypes types);

// A launch that moves `bytes` and computes `flops` takes at least the longer of the two times.
struct Bound {
  double seconds = 0;
  bool by_memory = true;
};
Bound bound_of(const Limits& limits, double bytes, double flops);

}  // namespace refrain::worker
