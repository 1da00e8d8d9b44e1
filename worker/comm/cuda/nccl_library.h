#pragma once
// NCCL, loaded when a group of more than one rank is made: the library of $REFRAIN_NCCL if set,
// else libnccl.so.2 where the system finds it. Nothing links to it, so that one GPU needs none.

#include <nccl.h>

#include <memory>
#include <string>

#include "runtime/base/result.h"

namespace refrain::worker {

struct NcclLibrary {
  // The handle is never closed: NCCL keeps threads of its own. Call before the first CUDA work of a
  // group: it sets NCCL's environment (no multicast, no mixing of graphs and eager launches).
  static Result<std::unique_ptr<NcclLibrary>> load();

  int version = 0;
  std::string path;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  // ncclCommRevoke; null before 2.28.9, whose headers do not declare it either.
  ncclResult_t (*revoke)(ncclComm_t comm, int flags) = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
};

}  // namespace refrain::worker
