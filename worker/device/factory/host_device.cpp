// The host device: kernels run on this process's threads, communicators over shared memory or
// tcp.

#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "kernels/host/isa.h"
#include "kernels/host/pack.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host/host_communicator.h"
#include "worker/device/device.h"
#include "worker/device/host/host_memory.h"
#include "worker/device/host/host_stream.h"
#include "worker/device/host/host_weights.h"

namespace refrain::worker {

namespace {

constexpr int kMaxThreads = 1024;

class HostCopier final : public Copier {
 public:
  bool is_host_memory() const override { return true; }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_words(void* to, const void* from, size_t bytes) override {
    auto* words = static_cast<uint64_t*>(const_cast<void*>(from));  // they are only read
    for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
      const uint64_t word = std::atomic_ref(words[i]).load(std::memory_order_acquire);
      std::memcpy(static_cast<std::byte*>(to) + i * sizeof word, &word, sizeof word);
    }
  }
  void finish() override {}
  Result<std::unique_ptr<MappedMemory>> map(std::span<const SharedPiece>) override {
    return fail(ErrorCode::kUnavailable, "the host device maps no memory of other processes");
  }
};

class HostDevice final : public Device {
 public:
  HostDevice(const HostDeviceOptions& options, kernels::HostIsa isa)
      : isa_(isa),
        context_(std::make_shared<HostContext>(options.threads, options.pin_threads,
                                               options.memory_limit)) {}

  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string name() const override {
    const int threads = context_->team.size();
    return fmt::format("host ({}, {} {})", kernels::to_string(isa_), threads,
                       threads == 1 ? "thread" : "threads");
  }
  std::shared_ptr<const LaunchCounter> launch_counter() const override {
    return context_->team.launch_counter();
  }
  const kernels::KernelTable& kernels() const override { return kernels::host_kernel_table(isa_); }
  kernels::WeightLayout weight_layout(DType) const override {
    return kernels::WeightLayout::kTiled16;
  }
  size_t weight_bytes(DType dtype, int64_t n, int64_t k) const override {
    return kernels::tiled16_bytes(n, k, dtype);
  }
  void upload_weight(Stream& stream, const kernels::Weight& weight, void* to, int64_t row_begin,
                     int64_t rows, const void* source) override {
    launch_upload(stream.ref(), weight, to, row_begin, rows, source);
  }
  bool runs_at_once() const override { return true; }
  int warmup_runs() const override { return 0; }

  std::unique_ptr<Buffer> allocate(size_t bytes, MemoryTag tag) override {
    context_->refuse_in_capture("allocate");
    return make_host_buffer(context_->memory, bytes, tag);
  }
  std::unique_ptr<Buffer> allocate_pinned(size_t bytes) override {
    context_->refuse_in_capture("allocate_pinned");
    return make_host_buffer(context_->memory, bytes, MemoryTag::kInputs);
  }
  std::unique_ptr<Reservation> reserve(size_t bytes, MemoryTag tag) override {
    context_->refuse_in_capture("reserve");
    return make_host_reservation(context_->memory, bytes, tag);
  }
  std::unique_ptr<Stream> create_stream(const DeviceShare& share) override {
    return std::make_unique<HostStream>(context_, share);
  }
  std::unique_ptr<Copier> create_copier() override { return std::make_unique<HostCopier>(); }
  MemoryAccount memory() const override { return context_->memory->account(); }

  Result<std::unique_ptr<Communicator>> create_communicator(const GroupOptions& options) override {
    context_->refuse_in_capture("create_communicator");
    std::unique_ptr<HostGroup> group;
    if (options.size != 1 || options.rank != 0) {
      REFRAIN_ASSIGN_OR_RETURN(group, join_group(options, context_->team.size()));
    }
    return std::make_unique<HostCommunicator>(context_, std::move(group));
  }

 private:
  kernels::HostIsa isa_;
  std::shared_ptr<HostContext> context_;
};

}  // namespace

Result<std::unique_ptr<Device>> create_host_device(const HostDeviceOptions& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return fail_field("host-threads", "the host device runs on 1 to {} threads, not {}",
                      kMaxThreads, options.threads);
  }
  const kernels::HostIsa best = kernels::best_host_isa();
  kernels::HostIsa isa = best;
  if (!options.isa.empty()) {
    const auto wanted = kernels::parse_host_isa(options.isa);
    if (!wanted) {
      return fail_field("host-isa",
                        "host-isa \"{}\" is not one of scalar, avx2, avx512, avx512_bf16",
                        options.isa);
    }
    if (!kernels::has_host_isa(*wanted)) {
      return fail_field("host-isa", "this processor has no {}; its fastest is {}",
                        kernels::to_string(*wanted), kernels::to_string(best));
    }
    isa = *wanted;
  }
  return std::make_unique<HostDevice>(options, isa);
}

}  // namespace refrain::worker
