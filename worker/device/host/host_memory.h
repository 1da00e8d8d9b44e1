#pragma once
// The host device's memory: aligned allocation, huge pages for large blocks, an exact account by
// tag and a limit. Shared by the device and every buffer and graph it made; any thread.

#include <cstddef>
#include <memory>
#include <mutex>

#include "worker/device/device.h"

namespace refrain::worker {

struct MachineMemory {
  size_t total = 0;      // of the machine, or of the control group where that is less
  size_t available = 0;  // what can still be used without swapping
};
MachineMemory read_machine_memory();

class HostMemory {
 public:
  explicit HostMemory(size_t limit) : limit_(limit), total_(limit) {
    if (limit == 0) total_ = read_machine_memory().total;
  }
  // Throws OutOfMemory with the missing bytes when the limit would be passed.
  void reserve(size_t bytes, MemoryTag tag);
  void release(size_t bytes, MemoryTag tag);
  MemoryAccount account() const;

 private:
  size_t used() const;  // these two under the mutex
  size_t free_bytes() const;

  mutable std::mutex mutex_;
  size_t limit_;  // 0: the machine's memory
  size_t total_;
  size_t by_tag_[kNumMemoryTags] = {};
};

// 256-byte aligned, of 2 MiB pages when large; counted in `memory` until it is destroyed.
std::unique_ptr<Buffer> make_host_buffer(std::shared_ptr<HostMemory> memory, size_t bytes,
                                         MemoryTag tag);
// Pages without access until they are backed; only then are they counted in `memory`.
std::unique_ptr<Reservation> make_host_reservation(std::shared_ptr<HostMemory> memory, size_t bytes,
                                                   MemoryTag tag);

}  // namespace refrain::worker
