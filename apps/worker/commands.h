#pragma once
// What the worker's program does: each parses its own arguments and returns the exit code.

#include <sys/types.h>

#include <string>
#include <vector>

namespace refrain {

// One rank of a model for a coordinator. Everything but weights, rank, device and the coordinator's
// address comes from the coordinator.
int serve_command(const std::vector<std::string>& arguments);

// A rank of `refrain bench gemm`, `attention`, `all-reduce` and `load`, which starts as many as the
// benchmark needs and reads their cases.
int bench_command(const std::vector<std::string>& arguments);

// Of --parent: from now on this process is killed when that one ends; false: it has ended already.
// 0: nothing to die with.
bool die_with(pid_t parent);

}  // namespace refrain
