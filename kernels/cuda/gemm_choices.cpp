#include "kernels/cuda/gemm_choices.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "runtime/base/log.h"

namespace refrain::kernels {
namespace {

constexpr const char* kTitle = "refrain gemm algorithms 2";

// A line: the shape, nanoseconds, then the words of the algorithm.
bool read_line(const std::string& line, std::string& shape, GemmChoice& choice) {
  std::istringstream words(line);
  words >> shape >> choice.ns >> std::hex;
  for (uint64_t& word : choice.algo.data) words >> word;
  return !words.fail() && (words >> std::ws).eof();
}

}  // namespace

GemmChoices::GemmChoices(std::filesystem::path file, std::string owner)
    : file_(std::move(file)), owner_(std::move(owner)) {
  std::ifstream in(file_);
  std::string line;
  if (!std::getline(in, line) || line != kTitle || !std::getline(in, line) || line != owner_)
    return;
  std::string shape;
  GemmChoice choice;
  while (std::getline(in, line))
    if (read_line(line, shape, choice)) by_shape_[shape] = choice;
}

std::optional<GemmChoice> GemmChoices::find(const std::string& shape) const {
  const auto at = by_shape_.find(shape);
  if (at == by_shape_.end()) return std::nullopt;
  return at->second;
}

void GemmChoices::add(const std::string& shape, const GemmChoice& choice) {
  by_shape_[shape] = choice;
  added_ = true;
}

// Ranks may write at the same time: each a file of its own, of which the last one stays.
void GemmChoices::save() {
  if (!std::exchange(added_, false) || file_.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(file_.parent_path(), failed);
  const std::filesystem::path own = file_.string() + "." + std::to_string(::getpid());
  {
    std::ofstream out(own);
    out << kTitle << '\n' << owner_ << '\n';
    for (const auto& [shape, choice] : by_shape_) {
      out << shape << ' ' << std::dec << choice.ns << std::hex;
      for (const uint64_t word : choice.algo.data) out << ' ' << word;
      out << '\n';
    }
    out.close();
    if (!out) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) std::filesystem::rename(own, file_, failed);
  if (!failed) return;
  log::warn("{}: the chosen algorithms are not kept: {}", file_.string(), failed.message());
  std::filesystem::remove(own, failed);
}

}  // namespace refrain::kernels
