#pragma once
// The limits this machine sets, measured: what a benchmark's figures are compared with.

#include "tests/bench/kernels/bench_team.h"

namespace refrain::kernels {

struct Limits {
  double read_gb_s = 0;    // all threads reading 256 MiB once
  double fma_gflop_s = 0;  // float32 fused multiply-adds in registers, all threads
  double dot_gflop_s = 0;  // bfloat16 dot products in registers; 0: the processor has none
};

Limits measure_limits(BenchTeam& team);

}  // namespace refrain::kernels
