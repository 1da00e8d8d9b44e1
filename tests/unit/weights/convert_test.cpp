#include "worker/weights/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "worker/weights/rope_table.h"

namespace refrain::worker::test {
namespace {

TEST(Convert, EveryFloat16IsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>((bits >> 10) & 0x1fu), mantissa = bits & 0x3ffu;
    const float value = float16_to_float(static_cast<uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double expected = exponent == 31
                                ? sign * std::numeric_limits<double>::infinity()
                                : sign * std::ldexp(exponent == 0 ? mantissa : mantissa + 1024,
                                                    std::max(exponent, 1) - 25);
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), sign < 0);
  }
}

TEST(Convert, RoundsToTheNearestBFloat16) {
  const float from[] = {1.0f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, -3.0f, 0.0f};
  BFloat16 to[5];
  convert(from, DType::kFloat32, to, DType::kBFloat16, 5);
  EXPECT_EQ(to_float(to[0]), 1.0f);
  EXPECT_EQ(to_float(to[1]), 1.0f);            // a tie: to even
  EXPECT_EQ(to_float(to[2]), 1.0f + 0x1p-6f);  // a tie: to even
  EXPECT_EQ(to_float(to[3]), -3.0f);
  EXPECT_EQ(to_float(to[4]), 0.0f);
}

TEST(Convert, WidensBFloat16AndFloat16) {
  const uint16_t half[] = {0x3c00, 0xc000};
  const BFloat16 brain[] = {to_bfloat16(0.5f), to_bfloat16(-8.0f)};
  float out[2];
  convert(half, DType::kFloat16, out, DType::kFloat32, 2);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  convert(brain, DType::kBFloat16, out, DType::kFloat32, 2);
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[1], -8.0f);
}

TEST(RopeTable, HoldsCosinesThenSines) {
  ModelConfig config;
  config.rope_theta = 10000.0;
  std::vector<float> table(3 * 8);
  fill_rope_table(config, 5, 3, 8, table.data());
  for (int row = 0; row < 3; ++row)
    for (int i = 0; i < 4; ++i) {
      const double angle = (5 + row) * std::pow(10000.0, -i / 4.0);
      EXPECT_FLOAT_EQ(table[static_cast<size_t>(row * 8 + i)], static_cast<float>(std::cos(angle)));
      EXPECT_FLOAT_EQ(table[static_cast<size_t>(row * 8 + 4 + i)],
                      static_cast<float>(std::sin(angle)));
    }
}

TEST(RopeTable, LinearScalingDividesEveryFrequency) {
  ModelConfig plain, scaled;
  scaled.rope_scaling.type = "linear";
  scaled.rope_scaling.factor = 4.0;
  for (size_t i = 0; i < 16; ++i)
    EXPECT_DOUBLE_EQ(rope_frequencies(scaled, 32)[i], rope_frequencies(plain, 32)[i] / 4.0);
}

// The bounds of the published scheme: wavelengths below original / high stay, above original / low
// are divided, between them the frequency falls steadily.
TEST(RopeTable, Llama3ScalingKeepsShortWavesAndDividesLongOnes) {
  ModelConfig plain, scaled;
  plain.rope_theta = scaled.rope_theta = 500000.0;
  scaled.rope_scaling = {.type = "llama3",
                         .factor = 8.0,
                         .low_freq_factor = 1.0,
                         .high_freq_factor = 4.0,
                         .original_max_position_embeddings = 8192};
  const auto before = rope_frequencies(plain, 128), after = rope_frequencies(scaled, 128);
  int kept = 0, divided = 0, between = 0;
  for (size_t i = 0; i < 64; ++i) {
    const double wavelength = 2 * std::numbers::pi / before[i];
    if (wavelength < 2048) {
      EXPECT_DOUBLE_EQ(after[i], before[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(after[i], before[i] / 8.0);
      ++divided;
    } else {
      const double smooth = (8192 / wavelength - 1.0) / 3.0;
      EXPECT_NEAR(after[i], before[i] * (smooth + (1 - smooth) / 8.0), 1e-15);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

}  // namespace
}  // namespace refrain::worker::test
