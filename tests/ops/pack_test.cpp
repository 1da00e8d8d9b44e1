// Packing into kTiled16, the instruction-set names, and the checks of arguments.
#include "kernels/host/pack.h"

#include <cmath>
#include <cstring>

#include "runtime/base/check.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

// Element [n, k] of a packed weight, by the layout as op_args.h words it.
float element(const std::vector<std::byte>& packed, int64_t n, int64_t k, int64_t cols,
              DType dtype) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, packed.data() + ((n / 16 * cols + k) * 16 + n % 16) * 4, 4);
    return value;
  }
  BFloat16 value;
  std::memcpy(&value, packed.data() + ((n / 16 * (cols / 2) + k / 2) * 32 + n % 16 * 2 + k % 2) * 2,
              2);
  return to_float(value);
}

TEST(Pack, TilesEverySourceTypeInAnyOrderOfRowsAndPadsWithZeros) {
  const int64_t n = 37, k = 10;
  const auto values = random_values(n * k, DType::kBFloat16, 1);
  std::vector<uint16_t> bf16, fp16(n * k);
  for (const float value : values) bf16.push_back(to_bfloat16(value).bits);
  for (int64_t i = 0; i < n * k; ++i) fp16[i] = static_cast<uint16_t>(0x3c00 + i);  // 1 + i/1024
  for (const DType to : kFloatTypes) {
    for (const DType from : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const void* source = from == DType::kFloat32    ? static_cast<const void*>(values.data())
                           : from == DType::kBFloat16 ? bf16.data()
                                                      : fp16.data();
      std::vector<std::byte> packed(tiled16_bytes(n, k, to), std::byte{0xff});
      EXPECT_EQ(packed.size(), 48 * k * size_of(to));
      const auto* bytes = static_cast<const char*>(source);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{20, 37}, {0, 20}}) {
        const RowMajorSource part{bytes + begin * k * size_of(from), from, k};
        ASSERT_TRUE(pack_tiled16(part, end - begin, k, to, packed.data(), begin));
      }
      pad_tiled16(packed.data(), n, k, to);
      for (int64_t row = 0; row < 48; ++row) {
        for (int64_t col = 0; col < k; ++col) {
          const int64_t i = row * k + col;
          float expected = 0;
          if (row < n) {
            expected = from == DType::kFloat16 ? 1.0f + static_cast<float>(i) / 1024 : values[i];
          }
          ASSERT_EQ(element(packed, row, col, k, to), round_to(expected, to)) << row << ", " << col;
        }
      }
    }
  }
}

TEST(Pack, TakesAColumnRangeOfAWiderMatrix) {
  const auto values = random_values(4 * 20, DType::kFloat32, 1);
  std::vector<std::byte> packed(tiled16_bytes(4, 6, DType::kFloat32));
  ASSERT_TRUE(pack_tiled16({values.data() + 5, DType::kFloat32, 20}, 4, 6, DType::kFloat32,
                           packed.data(), 0));
  EXPECT_EQ(element(packed, 3, 2, 6, DType::kFloat32), values[3 * 20 + 7]);
}

TEST(Pack, RefusesAnOddNumberOfColumnsAndUnknownTypesInASentence) {
  const float value = 0;
  float out[16];
  const auto odd = pack_tiled16({&value, DType::kFloat32, 1}, 1, 1, DType::kBFloat16, out, 0);
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("1 columns"), std::string::npos);
  const auto type = pack_tiled16({&value, DType::kInt64, 2}, 1, 2, DType::kBFloat16, out, 0);
  ASSERT_FALSE(type);
  EXPECT_NE(type.error().message.find("int64"), std::string::npos);
}

TEST(Pack, ReadsEveryKindOfFloat16) {
  EXPECT_EQ(float16_to_float(0x0000), 0.0f);
  EXPECT_TRUE(std::signbit(float16_to_float(0x8000)));
  EXPECT_EQ(float16_to_float(0x0001), 0x1.0p-24f);
  EXPECT_EQ(float16_to_float(0x83ff), -1023 * 0x1.0p-24f);
  EXPECT_EQ(float16_to_float(0x0400), 0x1.0p-14f);
  EXPECT_EQ(float16_to_float(0xc248), -3.140625f);
  EXPECT_EQ(float16_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(float16_to_float(0x7c00)));
  EXPECT_TRUE(std::isnan(float16_to_float(0x7e01)));
}

TEST(HostIsaNames, RoundTrip) {
  for (const HostIsa isa :
       {HostIsa::kScalar, HostIsa::kAvx2, HostIsa::kAvx512, HostIsa::kAvx512Bf16}) {
    EXPECT_EQ(parse_host_isa(to_string(isa)), isa);
  }
  EXPECT_EQ(parse_host_isa("AVX"), std::nullopt);
}

TEST(HostChecks, NameTheOpAndWhatIsWrong) {
  const auto harness = make_host_harness(HostIsa::kScalar, 1);
  LinearArgs args;
  args.in = fresh_matrix(*harness, 1, 3, DType::kBFloat16);
  args.out = fresh_matrix(*harness, 1, 16, DType::kBFloat16);
  args.weight = {harness->allocate(96), DType::kBFloat16, WeightLayout::kTiled16, 16, 3};
  try {
    harness->table().linear(harness->stream(), args);
    FAIL() << "an odd number of columns was taken";
  } catch (const FatalError& error) {
    EXPECT_NE(std::string(error.what()).find("even number of columns"), std::string::npos);
  }
}

}  // namespace
}  // namespace refrain::kernels
