#include "tests/unit/ipc/loop.h"

#include <cstdlib>
#include <filesystem>

#include "runtime/base/check.h"

namespace refrain::ipc {

TemporaryDirectory::TemporaryDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "refrain-ipc-XXXXXX").string();
  REFRAIN_CHECK(::mkdtemp(path_.data()) != nullptr, "no directory {}", path_);
}

TemporaryDirectory::~TemporaryDirectory() { std::filesystem::remove_all(path_); }

}  // namespace refrain::ipc
