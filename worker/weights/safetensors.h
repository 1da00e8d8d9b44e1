#pragma once
// One safetensors file: its header parsed and checked in full before a byte of data is read, its
// data read with pread, so that a file cut short meanwhile is an error and not a fault. Immutable
// after open; read() from any thread.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"

namespace refrain::worker {

struct TensorInfo {
  std::string name;
  std::string dtype;  // as in the file: "BF16", "F32", "F8_E4M3", …
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes into the file's data
};

// Parses the JSON of a header and checks it against `data_bytes`, the size of what follows it
// every dtype known, sizes equal to dtype × shape, byte ranges without hole or overlap,
// names and fields not twice. Ordered by place in the file. Errors name `file` and the tensor.
Result<std::vector<TensorInfo>> parse_safetensors_header(std::span<const char> json,
                                                         uint64_t data_bytes,
                                                         const std::string& file);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Bytes [offset, offset + bytes) of a tensor of this file.
  Status read(const TensorInfo& tensor, uint64_t offset, size_t bytes, void* to) const;

 private:
  std::string path_;
  UniqueFd fd_;
  uint64_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
};

}  // namespace refrain::worker
