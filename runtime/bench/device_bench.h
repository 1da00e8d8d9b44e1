#pragma once
// `refrain bench gemm|attention|all-reduce|load`: starts `worker bench` once a rank, on the device
// that is asked for, and prints the cases that the ranks measured. No engine, no server.

#include <vector>

#include "runtime/bench/bench.h"

namespace refrain {

// Whether a benchmark of this kind is of the device alone.
bool is_device_bench(const std::string& kind);

// Rows of a GEMM, requests of attention, when none are given.
std::vector<int32_t> default_batches(const std::string& kind);

int run_device_bench(const BenchOptions& options);  // the exit code

}  // namespace refrain
