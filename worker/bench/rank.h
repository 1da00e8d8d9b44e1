#pragma once
// One rank of a benchmark of the device: kernels, collectives and loading, without coordinator and
// engine. Ranks are processes, as in serving. Every limit is measured in the same run, through the
// device seam alone. Main thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"

namespace refrain::worker {

struct RankOptions {
  std::string kind;  // gemm | attention | all-reduce | load
  std::filesystem::path model;
  std::string device = "auto";
  HostDeviceOptions host;
  // Of these, the Program's: dtypes, block size, shares (tensor_parallel_size), load_dummy, seed.
  ipc::WorkerConfig config;
  int rank = 0;
  int ranks = 1;      // processes of this run
  std::string token;  // names their group
  std::vector<int32_t> batches, contexts, lengths;
  int32_t shared_prefix = 0;      // attention: tokens that requests of a batch begin with; 0: none
  std::vector<int64_t> messages;  // all-reduce: bytes
  int runs = 3;                   // samples of a case
  size_t pool_bytes = size_t{512} << 20;  // what weights and caches take turns in: past every cache
  int result_fd = 1;                      // where cases go, a line of JSON each
};

// Runs the kind. Errors name the option or the model's field.
Status run_rank(const RankOptions& options);

}  // namespace refrain::worker
