#pragma once
// How memory for the values of a Program is cut and cleared. Device thread.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker/device/device.h"
#include "worker/program/program.h"

namespace refrain::worker {

// Hands out aligned parts; run once with a null base to learn the size, then to place.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  void* take(size_t bytes);
  template <class T>
  void take(T*& target, size_t count) {
    target = static_cast<T*>(take(count * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// Of the largest step there can be.
size_t bytes_of(const Program& program, const Value& value);

// Fills device memory with one byte by copies from pinned memory, stream-ordered.
class Filler {
 public:
  Filler(Device& device, uint8_t byte);
  void fill(Stream& stream, void* to, size_t bytes) const;

 private:
  std::unique_ptr<Buffer> source_;
};

}  // namespace refrain::worker
