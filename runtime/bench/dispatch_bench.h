#pragma once
// `refrain bench dispatch`: what one dispatch costs, over batches of every kind and size. Needs no
// model and no worker; the dispatcher is the one that serves.

#include "runtime/bench/bench.h"

namespace refrain {

// Uses the graph options of `options.config`; a dispatcher of about 200 keys when none are given.
int run_dispatch_bench(const BenchOptions& options);

}  // namespace refrain
