#include "worker/comm/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "runtime/base/shared_library.h"

namespace refrain::worker {

namespace {

constexpr int kOldestVersion = NCCL_VERSION(2, 18, 0);

// Read by NCCL when it makes a communicator. Multicast (NVLS) leaves state behind in the NVLink
// switches when a process dies; no mixing means no extra event nodes in every graph.
void set_environment() {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
}

}  // namespace

Result<std::unique_ptr<NcclLibrary>> NcclLibrary::load() {
  set_environment();
  REFRAIN_ASSIGN_OR_RETURN(
      const SharedLibrary file,
      SharedLibrary::load("REFRAIN_NCCL", "libnccl.so.2", RTLD_NOW | RTLD_LOCAL,
                          "several GPUs need NCCL, which cannot be loaded"));
  auto library = std::make_unique<NcclLibrary>();
  library->path = file.path();
  Status all{};
  const auto find = [&](const char* name, auto& function) {
    if (all) all = file.require(name, "NCCL 2.18", function);
  };
  decltype(&ncclGetVersion) get_version = nullptr;
  find("ncclGetVersion", get_version);
  REFRAIN_RETURN_IF_ERROR(all);
  if (get_version(&library->version) != ncclSuccess || library->version < kOldestVersion) {
    return fail(ErrorCode::kInternal, "{} is NCCL of version code {}; 2.18 or later is needed",
                library->path, library->version);
  }
  find("ncclGetUniqueId", library->get_unique_id);
  find("ncclCommInitRankConfig", library->init_rank);
  find("ncclCommDestroy", library->destroy);
  find("ncclAllReduce", library->all_reduce);
  find("ncclAllGather", library->all_gather);
  find("ncclReduceScatter", library->reduce_scatter);
  find("ncclBroadcast", library->broadcast);
  find("ncclGetErrorString", library->error_string);
  find("ncclGetLastError", library->last_error);
  REFRAIN_RETURN_IF_ERROR(all);
  file.find("ncclCommRevoke", library->revoke);
  return library;
}

}  // namespace refrain::worker
