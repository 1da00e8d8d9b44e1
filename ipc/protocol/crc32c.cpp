#include "ipc/protocol/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace refrain::ipc {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kLane = 256;

using ByteTable = std::array<uint32_t, 256>;

// tables[k][b]: the register after byte b and k zero bytes (slicing by eight).
constexpr std::array<ByteTable, 8> make_slices() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    tables[0][b] = value;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b)
      tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
  return tables;
}
constexpr auto kSlices = make_slices();

// The register after kLane zero bytes is linear in the register: one table for each of its bytes.
constexpr std::array<ByteTable, 4> make_lane_shift() {
  std::array<uint32_t, 32> basis{};
  for (uint32_t bit = 0; bit < 32; ++bit) {
    uint32_t value = 1u << bit;
    for (size_t i = 0; i < kLane; ++i) value = (value >> 8) ^ kSlices[0][value & 0xff];
    basis[bit] = value;
  }
  std::array<ByteTable, 4> tables{};
  for (size_t k = 0; k < 4; ++k)
    for (uint32_t b = 0; b < 256; ++b)
      for (uint32_t bit = 0; bit < 8; ++bit)
        if ((b >> bit) & 1) tables[k][b] ^= basis[8 * k + bit];
  return tables;
}

uint64_t load64(const unsigned char* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint32_t update_portable(uint32_t crc, const unsigned char* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = load64(data) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kSlices[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; ++data, --size) crc = (crc >> 8) ^ kSlices[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__)
constexpr auto kLaneShift = make_lane_shift();

uint64_t shift_lane(uint64_t crc) {
  return kLaneShift[0][crc & 0xff] ^ kLaneShift[1][(crc >> 8) & 0xff] ^
         kLaneShift[2][(crc >> 16) & 0xff] ^ kLaneShift[3][(crc >> 24) & 0xff];
}

// The instruction takes three cycles but one starts every cycle: three lanes at once, joined by
// shifting (after the idea of M. Adler's crc32c).
__attribute__((target("sse4.2"))) uint32_t update_sse42(uint32_t start, const unsigned char* data,
                                                        size_t size) {
  uint64_t crc = start;
  for (; size >= 3 * kLane; data += 3 * kLane, size -= 3 * kLane) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, load64(data + i));
      second = _mm_crc32_u64(second, load64(data + kLane + i));
      third = _mm_crc32_u64(third, load64(data + 2 * kLane + i));
    }
    crc = shift_lane(shift_lane(crc) ^ second) ^ third;
  }
  for (; size >= 8; data += 8, size -= 8) crc = _mm_crc32_u64(crc, load64(data));
  for (; size > 0; ++data, --size) crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *data);
  return static_cast<uint32_t>(crc);
}
#endif

const unsigned char* bytes_of(std::span<const std::byte> data) {
  return reinterpret_cast<const unsigned char*>(data.data());
}

}  // namespace

uint32_t crc32c_portable(std::span<const std::byte> data, uint32_t crc) {
  return ~update_portable(~crc, bytes_of(data), data.size());
}

uint32_t crc32c(std::span<const std::byte> data, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~update_sse42(~crc, bytes_of(data), data.size());
#endif
  return crc32c_portable(data, crc);
}

}  // namespace refrain::ipc
