#include <cmath>

#include "worker/weights/convert.h"
#include "worker/weights/weight_source.h"

namespace refrain::worker {
namespace {

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hash(const std::string& text, uint64_t seed) {
  uint64_t state = mix(seed);
  for (const char c : text) state = mix(state ^ static_cast<uint8_t>(c));
  return state;
}

class DummyWeights final : public WeightSource {
 public:
  explicit DummyWeights(uint64_t seed) : seed_(seed) {}

  Status check(const WeightPart&) const override { return {}; }

  Status read(const WeightPart& part, int64_t row, int64_t rows, DType dtype, void* to) override {
    const auto [base, scale, offset] = *hashed(part);
    const int64_t cols = part.col_end - part.col_begin;
    row_.resize(static_cast<size_t>(cols));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t first = (row + i) * part.tensor_cols + part.col_begin;
      for (int64_t j = 0; j < cols; ++j) {
        const uint64_t bits = mix(base + static_cast<uint64_t>(first + j));
        const float uniform = static_cast<float>(static_cast<int64_t>(bits) >> 40) * 0x1p-23f;
        row_[static_cast<size_t>(j)] = offset + scale * uniform;
      }
      convert(row_.data(), DType::kFloat32,
              static_cast<char*>(to) + i * cols * static_cast<int64_t>(size_of(dtype)), dtype,
              cols);
    }
    return {};
  }

  std::optional<HashedPart> hashed(const WeightPart& part) const override {
    if (part.targets > 0) return HashedPart{};
    const bool vector = part.tensor_cols == 1;
    const bool norm = vector && !part.tensor.ends_with(".bias");
    // Uniform on (-1, 1) has variance 1/3.
    const float scale =
        vector ? 0.1f : static_cast<float>(std::sqrt(3.0 / static_cast<double>(part.tensor_cols)));
    return HashedPart{hash(part.tensor, seed_), scale, norm ? 1.0f : 0.0f};
  }

 private:
  uint64_t seed_;
  std::vector<float> row_;
};

}  // namespace

std::unique_ptr<WeightSource> dummy_weights(uint64_t seed) {
  return std::make_unique<DummyWeights>(seed);
}

}  // namespace refrain::worker
