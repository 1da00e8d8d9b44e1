#include "runtime/base/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace refrain {

Result<SharedLibrary> SharedLibrary::load(const char* variable, const char* name, int flags,
                                          const std::string& missing) {
  SharedLibrary library;
  const char* given = std::getenv(variable);
  library.path_ = given != nullptr && *given != '\0' ? given : name;
  library.handle_ = ::dlopen(library.path_.c_str(), flags);
  if (library.handle_ != nullptr) return library;
  const char* reason = ::dlerror();
  return fail(ErrorCode::kNotFound,
              "{} ({}); install it, put its folder on LD_LIBRARY_PATH, or name the file in {}",
              missing, reason == nullptr ? library.path_ : reason, variable);
}

void* SharedLibrary::symbol(const char* name) const { return ::dlsym(handle_, name); }

}  // namespace refrain
