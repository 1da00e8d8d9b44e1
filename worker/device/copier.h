#pragma once
// Copies beside a device's streams, and device memory of other processes: how blocks move between
// groups. A copier is made by the device thread, then called by one other thread. Its copies are in
// no order with launches. Failures of the device throw DeviceError.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"
#include "worker/device/copy_piece.h"

namespace refrain::worker {

// Device memory that other processes of the machine can map, by a descriptor or by words.
struct SharedPiece {
  uint64_t address = 0, bytes = 0;  // in the process that has it
  UniqueFd descriptor;
  std::vector<uint64_t> words;  // where there is no descriptor
};

// Another process's device memory at addresses of this one, for as long as this lives. The memory
// is there even when that process has ended.
class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  virtual std::byte* data() const = 0;
};

class Copier {
 public:
  virtual ~Copier() = default;
  // Device memory is memory of this process: it may be read and written without a copier.
  virtual bool is_host_memory() const = 0;
  // Begun, and done when finish() returns. Copies are quickest from and to allocate_pinned().
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // The same of many pieces of device memory.
  virtual void copy_all(std::span<const CopyPiece> pieces) {
    for (const CopyPiece& piece : pieces) copy(piece.to, piece.from, piece.bytes);
  }
  // Whole words of 64 bits that the device may be writing: each as it was at one time. Copies begun
  // after finish() find what the device had written before those words.
  virtual void copy_words(void* to, const void* from, size_t bytes) { copy(to, from, bytes); }
  virtual void finish() = 0;
  // Maps pieces that lie one behind the other, with descriptors of this process. kUnavailable: this
  // device cannot reach them.
  virtual Result<std::unique_ptr<MappedMemory>> map(std::span<const SharedPiece> pieces) = 0;
};

}  // namespace refrain::worker
