#pragma once
// Algorithms of cuBLASLt that were the fastest of those proposed when they were timed, by shape.
// Kept in a file of one device and version of cuBLASLt, so that the next start times nothing.
// Shared by the streams of a process; device thread.

#include <cublasLt.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace refrain::kernels {

class GemmChoices {
 public:
  // `owner` names device and version: a file of another one is not read, and written anew. An empty
  // path: nothing is kept. What cannot be read holds nothing.
  GemmChoices(std::filesystem::path file, std::string owner);

  // As it was timed; whoever takes it asks cuBLASLt whether it still fits.
  std::optional<cublasLtMatmulAlgo_t> find(const std::string& shape) const;
  void add(const std::string& shape, const cublasLtMatmulAlgo_t& algo);
  // Writes the file, if something was added. One that cannot be written is warned of.
  void save();
  size_t size() const { return by_shape_.size(); }

 private:
  std::filesystem::path file_;
  std::string owner_;
  std::map<std::string, cublasLtMatmulAlgo_t> by_shape_;
  bool added_ = false;
};

}  // namespace refrain::kernels
