#pragma once
// Writing safetensors files, whole and broken, into a directory of the test's own.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tests/temporary_directory.h"

namespace refrain::worker::test {

// 8 bytes of length, the header's text, the data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

// Tensors one after the other, as the format wants them.
class TensorWriter {
 public:
  template <class T>
  TensorWriter& add(const std::string& name, const std::string& dtype,
                    const std::vector<int64_t>& shape, const std::vector<T>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
    return *this;
  }
  std::string file() const { return safetensors(header_.dump(), data_); }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

class CheckpointTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) { directory_.write(name, bytes); }

 private:
  tests::TemporaryDirectory directory_;

 protected:
  const std::filesystem::path& dir_ = directory_.path();
};

}  // namespace refrain::worker::test
