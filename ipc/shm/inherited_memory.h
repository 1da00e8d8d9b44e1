#pragma once
// Memory without a file that a parent shares with a child through an inherited descriptor. It lives
// as long as one of them holds it, so that what a killed child wrote can still be read.

#include <cstddef>
#include <utility>

#include "runtime/base/result.h"
#include "runtime/base/unique_handle.h"

namespace refrain::ipc {

class InheritedMemory {
 public:
  // Zeroed; closed on exec unless it is passed on.
  static Result<UniqueFd> create(size_t bytes);
  // The descriptor may be closed afterwards. An error if its size is another.
  static Result<InheritedMemory> map(int fd, size_t bytes);

  InheritedMemory() = default;  // none: data() is null
  InheritedMemory(InheritedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  InheritedMemory& operator=(InheritedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~InheritedMemory();

  void* data() const { return data_; }

 private:
  InheritedMemory(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace refrain::ipc
