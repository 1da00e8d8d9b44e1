#include "kernels/host/pack.h"

#include <bit>
#include <cstring>

namespace refrain::kernels {
namespace {

float read(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(data) + at * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(data) + at * 2, 2);
  return dtype == DType::kBFloat16 ? to_float(BFloat16{bits}) : float16_to_float(bits);
}

}  // namespace

size_t tiled16_bytes(int64_t n, int64_t k, DType dtype) {
  return static_cast<size_t>((n + 15) / 16 * 16 * k) * size_of(dtype);
}

Status pack_tiled16(const RowMajorSource& source, int64_t rows, int64_t k, DType to, void* out,
                    int64_t n_begin) {
  const bool known = source.dtype == DType::kBFloat16 || source.dtype == DType::kFloat16 ||
                     source.dtype == DType::kFloat32;
  if (!known || (to != DType::kBFloat16 && to != DType::kFloat32)) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot pack {} weights as {}: the host packs bfloat16, float16 and float32 as "
                "bfloat16 or float32",
                to_string(source.dtype), to_string(to));
  }
  if (to == DType::kBFloat16 && k % 2 != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot pack a weight of {} columns as bfloat16: the tiled layout needs an even "
                "number",
                k);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t n = n_begin + row;
    const int64_t from = row * source.row_stride;
    const int64_t tile = n / 16 * k * 16;
    if (to == DType::kFloat32) {
      float* at = static_cast<float*>(out) + tile + n % 16;
      for (int64_t i = 0; i < k; ++i) at[i * 16] = read(source.data, source.dtype, from + i);
      continue;
    }
    char* at = static_cast<char*>(out) + (tile + n % 16 * 2) * 2;
    const char* bits = static_cast<const char*>(source.data) + from * 2;
    for (int64_t i = 0; i < k; i += 2) {
      if (source.dtype == DType::kBFloat16) {
        std::memcpy(at + i * 32, bits + i * 2, 4);
        continue;
      }
      const BFloat16 pair[2] = {to_bfloat16(read(source.data, source.dtype, from + i)),
                                to_bfloat16(read(source.data, source.dtype, from + i + 1))};
      std::memcpy(at + i * 32, pair, 4);
    }
  }
  return {};
}

void pad_tiled16(void* out, int64_t n, int64_t k, DType dtype) {
  if (n % 16 == 0) return;
  const auto group = static_cast<int64_t>(dtype == DType::kBFloat16 ? 2 : 1);
  const auto size = static_cast<int64_t>(size_of(dtype));
  char* tile = static_cast<char*>(out) + n / 16 * k * 16 * size;
  for (int64_t i = 0; i < k / group; ++i) {
    std::memset(tile + (i * 16 + n % 16) * group * size, 0,
                static_cast<size_t>((16 - n % 16) * group * size));
  }
}

float float16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace refrain::kernels
