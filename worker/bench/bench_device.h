#pragma once
// The device of a benchmark's rank: its stream and group, memory with numbers in it, and the time
// that launches take. Main thread.

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "worker/bench/rank.h"
#include "worker/comm/communicator.h"

namespace refrain::worker {

class BenchDevice {
 public:
  // Opens the device and joins the group, with a message from every rank that is missing.
  static Result<std::unique_ptr<BenchDevice>> open(const RankOptions& options);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Communicator& group() { return *group_; }
  const kernels::KernelTable& kernels() const { return device_->kernels(); }

  // Seconds of one call, a sample a run: `calls` calls after each other as one graph, between two
  // events. body(i) is call i of a graph; 0 calls: as many as fill a sample. Ranks give the same
  // number.
  std::vector<double> time(const std::function<void(int)>& body, int calls = 0) {
    return sample(body, calls, runs_);
  }
  // The least of many samples: what a limit is, whatever else the machine does meanwhile.
  double least_time(const std::function<void(int)>& body, int calls = 1);

  // Device memory of finite, small numbers, as bfloat16 or as float32.
  std::unique_ptr<Buffer> numbers(size_t bytes);
  std::unique_ptr<Buffer> scratch(size_t bytes) {
    return device_->allocate(bytes, MemoryTag::kOther);
  }
  template <class T>
  std::unique_ptr<Buffer> put(const std::vector<T>& values) {
    auto to = scratch(values.size() * sizeof(T));
    auto from = device_->allocate_pinned(values.size() * sizeof(T));
    std::memcpy(from->data(), values.data(), values.size() * sizeof(T));
    stream_->copy(to->data(), from->data(), values.size() * sizeof(T));
    stream_->synchronize();
    return to;
  }

 private:
  BenchDevice(std::unique_ptr<Device> device, int runs) : device_(std::move(device)), runs_(runs) {}
  std::vector<double> sample(const std::function<void(int)>& body, int calls, int samples);
  double time_once(const std::function<void(int)>& body);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<Stream> stream_;
  int runs_;
};

// Parts of a buffer of numbers that take turns, so that what is read comes from memory.
class Pool {
 public:
  // Of `bytes`, or of one part where that is more.
  Pool(BenchDevice& device, size_t bytes, size_t largest_part)
      : numbers_(device.numbers(std::max(bytes, round_up(largest_part)))) {}
  std::byte* part(size_t bytes, int turn) const {
    const size_t count = numbers_->bytes() / round_up(bytes);
    return data() + static_cast<size_t>(turn) % count * round_up(bytes);
  }
  std::byte* data() const { return static_cast<std::byte*>(numbers_->data()); }
  size_t bytes() const { return numbers_->bytes(); }

 private:
  static size_t round_up(size_t bytes) { return (bytes + 1023) / 1024 * 1024; }
  std::unique_ptr<Buffer> numbers_;
};

}  // namespace refrain::worker
