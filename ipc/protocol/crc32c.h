#pragma once
// CRC32C (Castagnoli), the frame's checksum. Pure functions; any thread. Uses the processor's CRC
// instruction in three interleaved lanes where there is one, tables otherwise.

#include <cstddef>
#include <cstdint>
#include <span>

namespace refrain::ipc {

// Of `data` appended to what `crc` is the checksum of (0: nothing).
uint32_t crc32c(std::span<const std::byte> data, uint32_t crc = 0);

// The table version, to compare with.
uint32_t crc32c_portable(std::span<const std::byte> data, uint32_t crc = 0);

}  // namespace refrain::ipc
