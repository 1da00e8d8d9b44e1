#include "worker/runner/value_memory.h"

#include <algorithm>
#include <cstring>

namespace refrain::worker {
namespace {

constexpr size_t kPartAlignment = 256;
constexpr size_t kFillBytes = size_t{64} << 10;

}  // namespace

void* Carver::take(size_t bytes) {
  void* part = base_ == nullptr ? nullptr : base_ + used_;
  used_ = (used_ + bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  return part;
}

size_t bytes_of(const Program& program, const Value& value) {
  return static_cast<size_t>(value.rows.resolve(program.max_sizes()) * value.cols) *
         size_of(value.dtype);
}

Filler::Filler(Device& device, uint8_t byte) : source_(device.allocate_pinned(kFillBytes)) {
  std::memset(source_->data(), byte, kFillBytes);
}

void Filler::fill(Stream& stream, void* to, size_t bytes) const {
  for (size_t done = 0; done < bytes; done += kFillBytes) {
    stream.copy(static_cast<std::byte*>(to) + done, source_->data(),
                std::min(kFillBytes, bytes - done));
  }
}

}  // namespace refrain::worker
