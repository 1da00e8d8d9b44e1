#pragma once
// A library that is loaded when it is needed, so that who does without it needs none. It is never
// closed: such libraries keep threads of their own.

#include <string>

#include "runtime/base/result.h"

namespace refrain {

class SharedLibrary {
 public:
  // The file that the variable of the environment names, else `name` where the system finds it;
  // `flags` as of dlopen. kNotFound: `missing`, which says what cannot be loaded and for what, and
  // the loader's reason.
  static Result<SharedLibrary> load(const char* variable, const char* name, int flags,
                                    const std::string& missing);

  const std::string& path() const { return path_; }
  // Null where it has none.
  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(symbol(name));
  }
  // kNotFound: it has none, and which version has one.
  template <class Function>
  Status require(const char* name, const char* version, Function& function) const {
    find(name, function);
    if (function != nullptr) return {};
    return fail(ErrorCode::kNotFound, "{} has no {}; {} or later is needed", path_, name, version);
  }

 private:
  void* symbol(const char* name) const;

  std::string path_;
  void* handle_ = nullptr;
};

}  // namespace refrain
