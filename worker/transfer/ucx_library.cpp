#include "worker/transfer/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "runtime/base/shared_library.h"

namespace refrain::worker {
namespace {

// A fault of this process is reported by its own handlers, and no function of the C library is
// patched to follow memory: what UCX reads and writes is registered.
void set_environment() {
  setenv("UCX_MEM_EVENTS", "n", 0);
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
}

}  // namespace

Result<std::unique_ptr<UcxLibrary>> UcxLibrary::load() {
  set_environment();
  REFRAIN_ASSIGN_OR_RETURN(
      const SharedLibrary file,
      SharedLibrary::load("REFRAIN_UCX", "libucp.so.0", RTLD_NOW | RTLD_GLOBAL,
                          "--kv-transfer-backend ucx needs UCX (libucx0 of Debian, libucx-cu13 of "
                          "PyPI where GPUs are), which cannot be loaded"));
  auto library = std::make_unique<UcxLibrary>();
  library->path = file.path();
  Status all{};
  const auto find = [&](const char* name, auto& function) {
    if (all) all = file.require(name, "UCX 1.13", function);
  };
  find("ucp_init_version", library->init);
  find("ucp_cleanup", library->cleanup);
  find("ucp_context_query", library->context_query);
  find("ucp_worker_create", library->worker_create);
  find("ucp_worker_destroy", library->worker_destroy);
  find("ucp_worker_get_address", library->worker_get_address);
  find("ucp_worker_release_address", library->worker_release_address);
  find("ucp_worker_get_efd", library->worker_get_efd);
  find("ucp_worker_arm", library->worker_arm);
  find("ucp_worker_progress", library->worker_progress);
  find("ucp_mem_map", library->mem_map);
  find("ucp_mem_unmap", library->mem_unmap);
  find("ucp_rkey_pack", library->rkey_pack);
  find("ucp_rkey_buffer_release", library->rkey_buffer_release);
  find("ucp_ep_create", library->ep_create);
  find("ucp_ep_close_nbx", library->ep_close);
  find("ucp_ep_rkey_unpack", library->rkey_unpack);
  find("ucp_rkey_destroy", library->rkey_destroy);
  find("ucp_get_nbx", library->get);
  find("ucp_request_check_status", library->request_status);
  find("ucp_request_free", library->request_free);
  find("ucs_status_string", library->status_string);
  REFRAIN_RETURN_IF_ERROR(all);
  return library;
}

}  // namespace refrain::worker
