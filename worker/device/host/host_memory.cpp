#include "worker/device/host/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <new>
#include <numeric>
#include <string>

namespace refrain::worker {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// A "Key: N kB" line of /proc/meminfo in bytes; 0 when it is not there.
size_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  size_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == key + ":") return kib * 1024;
  }
  return 0;
}

// A number in a control-group file; `otherwise` when it is missing or "max".
size_t read_number(const char* path, size_t otherwise) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : otherwise;
}

// Maps whole huge pages on a huge-page boundary, by cutting the ends of a larger mapping off; null
// when the system has no such addresses.
void* map_huge(size_t bytes, int protection) {
  void* raw = mmap(nullptr, bytes + kHugePage, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const size_t head = round_up(begin, kHugePage) - begin;
  if (head > 0) munmap(raw, head);
  std::byte* data = static_cast<std::byte*>(raw) + head;
  if (head < kHugePage) munmap(data + bytes, kHugePage - head);
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: without huge pages it is merely slower
  return data;
}

class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::shared_ptr<HostMemory> memory, size_t bytes, MemoryTag tag)
      : memory_(std::move(memory)), bytes_(bytes), tag_(tag) {
    memory_->reserve(bytes_, tag_);
    if (bytes_ >= kHugePage) {
      mapped_ = round_up(bytes_, kHugePage);
      data_ = map_huge(mapped_, PROT_READ | PROT_WRITE);
    } else {
      data_ =
          ::operator new (std::max<size_t>(bytes_, 1), std::align_val_t{kAlignment}, std::nothrow);
    }
    if (data_ == nullptr) {
      memory_->release(bytes_, tag_);
      throw OutOfMemory(fmt::format("the system gave no {} bytes for {}", bytes_, to_string(tag_)),
                        bytes_);
    }
  }
  ~HostBuffer() override {
    if (mapped_ != 0) {
      munmap(data_, mapped_);
    } else {
      ::operator delete (data_, std::align_val_t{kAlignment});
    }
    memory_->release(bytes_, tag_);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<HostMemory> memory_;
  size_t bytes_;
  MemoryTag tag_;
  void* data_ = nullptr;
  size_t mapped_ = 0;  // 0: from operator new
};

class HostReservation final : public Reservation {
 public:
  HostReservation(std::shared_ptr<HostMemory> memory, size_t bytes, MemoryTag tag)
      : memory_(std::move(memory)),
        bytes_(bytes),
        mapped_(round_up(std::max<size_t>(bytes, 1), kHugePage)),
        tag_(tag),
        data_(map_huge(mapped_, PROT_NONE)) {
    if (data_ == nullptr) {
      throw OutOfMemory(
          fmt::format("the system gave no addresses for {} bytes of {}", bytes, to_string(tag)),
          bytes);
    }
  }
  ~HostReservation() override {
    munmap(data_, mapped_);
    memory_->release(backed_, tag_);
  }
  HostReservation(const HostReservation&) = delete;
  HostReservation& operator=(const HostReservation&) = delete;

  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  size_t backed() const override { return backed_; }
  void back(size_t bytes) override {
    REFRAIN_CHECK(bytes <= bytes_, "{} bytes of a reservation of {}", bytes, bytes_);
    if (bytes <= backed_) return;
    const size_t more = bytes - backed_;
    memory_->reserve(more, tag_);
    if (mprotect(data_, bytes, PROT_READ | PROT_WRITE) != 0) {
      memory_->release(more, tag_);
      throw OutOfMemory(fmt::format("the system gave no {} bytes for {}", more, to_string(tag_)),
                        more);
    }
    backed_ = bytes;
  }
  void trim(size_t bytes) override {
    constexpr size_t kPage = 4096;
    if (bytes >= backed_) return;
    const size_t from = round_up(bytes, kPage), to = round_up(backed_, kPage);
    if (from < to) {
      // Without it the memory stays with this process, which is no error.
      madvise(static_cast<std::byte*>(data_) + from, to - from, MADV_DONTNEED);
      mprotect(static_cast<std::byte*>(data_) + from, to - from, PROT_NONE);
    }
    memory_->release(backed_ - bytes, tag_);
    backed_ = bytes;
  }

 private:
  std::shared_ptr<HostMemory> memory_;
  size_t bytes_, mapped_;
  size_t backed_ = 0;
  MemoryTag tag_;
  void* data_;
};

}  // namespace

MachineMemory read_machine_memory() {
  const size_t total = meminfo("MemTotal");
  const size_t limit = read_number("/sys/fs/cgroup/memory.max", total);
  const size_t used = read_number("/sys/fs/cgroup/memory.current", 0);
  MachineMemory memory{std::min(total, limit), meminfo("MemAvailable")};
  if (limit < total) memory.available = std::min(memory.available, limit - std::min(limit, used));
  return memory;
}

size_t HostMemory::used() const {
  return std::accumulate(std::begin(by_tag_), std::end(by_tag_), size_t{0});
}

size_t HostMemory::free_bytes() const {
  const size_t left = total_ - std::min(total_, used());
  return limit_ != 0 ? left : std::min(left, read_machine_memory().available);
}

void HostMemory::reserve(size_t bytes, MemoryTag tag) {
  // Small blocks of a machine without a limit are not worth reading /proc for.
  const bool small = limit_ == 0 && bytes < kHugePage;
  const std::lock_guard lock(mutex_);
  const size_t free = small ? total_ - std::min(total_, used()) : free_bytes();
  if (bytes > free) {
    throw OutOfMemory(fmt::format("{} needs {} bytes and {} of {} are free on the host device",
                                  to_string(tag), bytes, free, total_),
                      bytes - free);
  }
  by_tag_[static_cast<int>(tag)] += bytes;
}

void HostMemory::release(size_t bytes, MemoryTag tag) {
  const std::lock_guard lock(mutex_);
  by_tag_[static_cast<int>(tag)] -= bytes;
}

MemoryAccount HostMemory::account() const {
  MemoryAccount account;
  const std::lock_guard lock(mutex_);
  account.total = total_;
  account.free = free_bytes();
  std::copy(std::begin(by_tag_), std::end(by_tag_), std::begin(account.by_tag));
  return account;
}

std::unique_ptr<Buffer> make_host_buffer(std::shared_ptr<HostMemory> memory, size_t bytes,
                                         MemoryTag tag) {
  return std::make_unique<HostBuffer>(std::move(memory), bytes, tag);
}

std::unique_ptr<Reservation> make_host_reservation(std::shared_ptr<HostMemory> memory, size_t bytes,
                                                   MemoryTag tag) {
  return std::make_unique<HostReservation>(std::move(memory), bytes, tag);
}

}  // namespace refrain::worker
