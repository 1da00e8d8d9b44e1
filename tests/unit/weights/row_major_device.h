#pragma once
// A device that only holds weights, row-major, so that tests can read what was loaded.

#include <cstring>
#include <stdexcept>

#include "worker/comm/communicator.h"
#include "worker/device/device.h"

namespace refrain::worker::test {

class HeapBuffer final : public Buffer {
 public:
  explicit HeapBuffer(size_t bytes) : bytes_(bytes, std::byte{0xa5}) {}
  void* data() const override { return const_cast<std::byte*>(bytes_.data()); }
  size_t bytes() const override { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

class EagerStream final : public Stream {
 public:
  kernels::StreamRef ref() override { return {}; }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_rows(std::span<const CopyRows>, size_t) override {
    throw std::logic_error("no weight is copied by rows");
  }
  void synchronize() override {}
  std::unique_ptr<Event> record() override { throw DeviceError("no events here"); }
  std::unique_ptr<Event> record_time() override { throw DeviceError("no events here"); }
  void begin_capture() override { throw DeviceError("no capture here"); }
  std::unique_ptr<Graph> end_capture() override { throw DeviceError("no capture here"); }
  bool capturing() const override { return false; }
  void launch(Graph&) override { throw DeviceError("no graphs here"); }
};

class RowMajorDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string name() const override { return "row-major"; }
  const kernels::KernelTable& kernels() const override { return kernels_; }
  kernels::WeightLayout weight_layout(DType) const override {
    return kernels::WeightLayout::kRowMajor;
  }
  size_t weight_bytes(DType dtype, int64_t n, int64_t k) const override {
    return static_cast<size_t>(n * k) * size_of(dtype);
  }
  void upload_weight(Stream& stream, const kernels::Weight& weight, void* to, int64_t row_begin,
                     int64_t rows, const void* source) override {
    const auto row_bytes = static_cast<size_t>(weight.k) * size_of(weight.dtype);
    stream.copy(static_cast<char*>(to) + static_cast<size_t>(row_begin) * row_bytes, source,
                static_cast<size_t>(rows) * row_bytes);
    ++uploads;
  }
  int warmup_runs() const override { return 0; }
  std::unique_ptr<Copier> create_copier() override { throw DeviceError("no copier here"); }
  std::unique_ptr<Buffer> allocate(size_t bytes, MemoryTag) override {
    return std::make_unique<HeapBuffer>(bytes);
  }
  std::unique_ptr<Buffer> allocate_pinned(size_t bytes) override {
    return std::make_unique<HeapBuffer>(bytes);
  }
  std::unique_ptr<Reservation> reserve(size_t, MemoryTag) override {
    throw DeviceError("no reservations here");
  }
  std::unique_ptr<Stream> create_stream(const worker::DeviceShare&) override {
    return std::make_unique<EagerStream>();
  }
  MemoryAccount memory() const override { return {}; }
  Result<std::unique_ptr<Communicator>> create_communicator(const GroupOptions&) override {
    return fail(ErrorCode::kInternal, "no collectives here");
  }

  int uploads = 0;

 private:
  kernels::KernelTable kernels_;
};

}  // namespace refrain::worker::test
