#pragma once
// A directory of mode 0700 that goes, with what is in it, at the end of a test.

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace refrain::tests {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "refrain-test-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), path);
    path_ = path;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;  // a test may have removed it
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The path of the file, which holds `bytes`.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace refrain::tests
