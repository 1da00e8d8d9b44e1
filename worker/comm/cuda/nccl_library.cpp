#include "worker/comm/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace refrain::worker {

namespace {

constexpr int kOldestVersion = NCCL_VERSION(2, 18, 0);

template <class Function>
Status find(void* handle, const char* name, const std::string& path, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function != nullptr) return {};
  return fail(ErrorCode::kInternal, "{} has no {}; NCCL 2.18 or later is needed", path, name);
}

// Read by NCCL when it makes a communicator. Multicast (NVLS) leaves state behind in the NVLink
// switches when a process dies; no mixing means no extra event nodes in every graph.
void set_environment() {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
}

}  // namespace

Result<std::unique_ptr<NcclLibrary>> NcclLibrary::load() {
  set_environment();
  auto library = std::make_unique<NcclLibrary>();
  const char* given = std::getenv("REFRAIN_NCCL");
  library->path = given != nullptr && *given != '\0' ? given : "libnccl.so.2";
  void* handle = dlopen(library->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return fail(ErrorCode::kNotFound,
                "several GPUs need NCCL, which cannot be loaded ({}); install it, put its folder "
                "on LD_LIBRARY_PATH, or name the file in REFRAIN_NCCL",
                reason == nullptr ? library->path : reason);
  }
  decltype(&ncclGetVersion) get_version = nullptr;
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclGetVersion", library->path, get_version));
  if (get_version(&library->version) != ncclSuccess || library->version < kOldestVersion) {
    return fail(ErrorCode::kInternal, "{} is NCCL of version code {}; 2.18 or later is needed",
                library->path, library->version);
  }
  const std::string& path = library->path;
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclGetUniqueId", path, library->get_unique_id));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclCommInitRankConfig", path, library->init_rank));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclCommDestroy", path, library->destroy));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclAllReduce", path, library->all_reduce));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclAllGather", path, library->all_gather));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclReduceScatter", path, library->reduce_scatter));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclBroadcast", path, library->broadcast));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclGetErrorString", path, library->error_string));
  REFRAIN_RETURN_IF_ERROR(find(handle, "ncclGetLastError", path, library->last_error));
  library->revoke = reinterpret_cast<decltype(library->revoke)>(dlsym(handle, "ncclCommRevoke"));
  return library;
}

}  // namespace refrain::worker
