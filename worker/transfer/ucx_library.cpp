#include "worker/transfer/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>

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
  auto library = std::make_unique<UcxLibrary>();
  const char* given = std::getenv("REFRAIN_UCX");
  library->path = given != nullptr && *given != '\0' ? given : "libucp.so.0";
  void* handle = dlopen(library->path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return fail(ErrorCode::kNotFound,
                "--kv-transfer-backend ucx needs UCX, which cannot be loaded ({}); install it "
                "(libucx0 of Debian, libucx-cu13 of PyPI where GPUs are), put its folder on "
                "LD_LIBRARY_PATH, or name the file in REFRAIN_UCX",
                reason == nullptr ? library->path : reason);
  }
  Status all{};
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && all)
      all = fail(ErrorCode::kNotFound, "{} has no {}; UCX 1.13 or later is needed", library->path,
                 name);
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
