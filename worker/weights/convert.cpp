#include "worker/weights/convert.h"

#include <bit>
#include <cstring>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

template <class To>
To rounded(float value) {
  if constexpr (std::is_same_v<To, float>)
    return value;
  else
    return to_bfloat16(value);
}

template <class To>
void convert_to(const void* from, DType from_dtype, To* to, int64_t count) {
  if (from_dtype == DType::kFloat32) {
    const auto* in = static_cast<const float*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = rounded<To>(in[i]);
  } else if (from_dtype == DType::kBFloat16) {
    const auto* in = static_cast<const BFloat16*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = rounded<To>(to_float(in[i]));
  } else {
    REFRAIN_CHECK(from_dtype == DType::kFloat16, "weights cannot be read from {}",
                  to_string(from_dtype));
    const auto* in = static_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = rounded<To>(float16_to_float(in[i]));
  }
}

}  // namespace

float float16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * size_of(to_dtype));
  } else if (to_dtype == DType::kFloat32) {
    convert_to(from, from_dtype, static_cast<float*>(to), count);
  } else {
    REFRAIN_CHECK(to_dtype == DType::kBFloat16, "weights cannot be held as {}",
                  to_string(to_dtype));
    convert_to(from, from_dtype, static_cast<BFloat16*>(to), count);
  }
}

}  // namespace refrain::worker
