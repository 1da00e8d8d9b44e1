#pragma once
// How far a row lies from what was expected there: the one definition of every device's
// row_distances and of who reads them. Maxima of magnitudes alone, so that neither the order of
// the columns nor the device changes a bit.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace refrain::kernels {

struct RowDistance {
  // The greatest |got - expected|; infinity where one of the two is not finite and they are not
  // the same. Two that are not numbers are the same.
  float apart = 0;
  float largest = 0;  // the greatest magnitude among the finite expected values

  // The distance in units of the largest magnitude beside it; never NaN, which no bound would find.
  constexpr float worst() const {
    if (apart == 0) return 0;
    const bool finite = apart <= std::numeric_limits<float>::max();
    return finite && largest > 0 ? apart / largest : std::numeric_limits<float>::infinity();
  }
  // Of two parts of one row.
  constexpr RowDistance with(const RowDistance& other) const {
    return {apart > other.apart ? apart : other.apart,
            largest > other.largest ? largest : other.largest};
  }
};

// A row while it is walked. The bits of magnitudes are ordered as the magnitudes are, infinity and
// then NaN above all of them.
struct DistanceBits {
  int32_t apart = 0, largest = 0;

  static constexpr int32_t kInfinity = 0x7f800000;
  static constexpr int32_t magnitude(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

  constexpr void add(float got, float expected) {
    const int32_t got_size = magnitude(got), size = magnitude(expected);
    // Masks of integers instead of branches: a compiler makes vectors of them.
    const int32_t differ =
        -static_cast<int32_t>(std::bit_cast<int32_t>(got) != std::bit_cast<int32_t>(expected));
    const int32_t number = -static_cast<int32_t>((got_size <= kInfinity) | (size <= kInfinity));
    const int32_t finite = -static_cast<int32_t>(size < kInfinity);
    apart = std::max(apart, magnitude(got - expected) & differ & number);
    largest = std::max(largest, size & finite);
  }
  constexpr RowDistance value() const {
    // A copy of the constant: device code has no address of it.
    const int32_t bits = apart < kInfinity ? apart : int32_t{kInfinity};
    return {std::bit_cast<float>(bits), std::bit_cast<float>(largest)};
  }
};

}  // namespace refrain::kernels
