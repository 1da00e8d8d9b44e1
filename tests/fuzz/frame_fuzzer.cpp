// Fuzzes decode_frame. The mutator repairs length and checksum most of the time, so that what lies
// behind the checksum is reached. What is accepted must encode to the very same bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/crc32c.h"
#include "ipc/protocol/limits.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using refrain::ipc::kHeaderBytes;

constexpr size_t kTypes = std::variant_size_v<refrain::ipc::Message>;

template <class T>
void put(uint8_t* data, size_t at, T value) {
  std::memcpy(data + at, &value, sizeof value);
}

void repair(uint8_t* data, size_t size, unsigned seed) {
  put(data, 0, refrain::ipc::kFrameMagic);
  put(data, 4, refrain::ipc::kProtocolVersion);
  if (data[6] == 0 || data[6] > kTypes) data[6] = static_cast<uint8_t>(1 + seed % kTypes);
  data[7] = 0;
  put(data, 8, static_cast<uint32_t>(size - kHeaderBytes));
  const std::span all(reinterpret_cast<const std::byte*>(data), size);
  put(data, 12, refrain::ipc::crc32c(all.subspan(16), refrain::ipc::crc32c(all.first(12))));
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  if (size < kHeaderBytes || seed % 16 == 0) {
    size = LLVMFuzzerMutate(data, size, max_size);
  } else {
    if (seed % 32 == 1) data[6] = static_cast<uint8_t>(1 + (seed / 32) % kTypes);
    size = kHeaderBytes +
           LLVMFuzzerMutate(data + kHeaderBytes, size - kHeaderBytes, max_size - kHeaderBytes);
  }
  if (size >= kHeaderBytes && seed % 64 != 2) repair(data, size, seed);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span frame(reinterpret_cast<const std::byte*>(data), size);
  const auto decoded = refrain::ipc::decode_frame(frame);
  if (!decoded) return 0;
  std::vector<std::byte> again;
  refrain::ipc::encode_frame(decoded->message, decoded->info, again);
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  return 0;
}
