#pragma once
// Algorithms of cuBLASLt that were timed and chosen, by shape, with their times. Kept in a file of
// one device and version of cuBLASLt, so that the next start times none of them again. Shared by
// the streams of a process; device thread.

#include <cublasLt.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace refrain::kernels {

struct GemmChoice {
  cublasLtMatmulAlgo_t algo{};
  int64_t ns = 0;  // of one launch, weights in no cache
};

class GemmChoices {
 public:
  // `owner` names device and version: a file of another one is not read, and written anew. An empty
  // path: nothing is kept. What cannot be read holds nothing.
  GemmChoices(std::filesystem::path file, std::string owner);

  // As it was timed; whoever takes it asks cuBLASLt whether it still fits.
  std::optional<GemmChoice> find(const std::string& shape) const;
  void add(const std::string& shape, const GemmChoice& choice);
  // Writes the file, if something was added. One that cannot be written is warned of.
  void save();
  size_t size() const { return by_shape_.size(); }

 private:
  std::filesystem::path file_;
  std::string owner_;
  std::map<std::string, GemmChoice> by_shape_;
  bool added_ = false;
};

}  // namespace refrain::kernels
