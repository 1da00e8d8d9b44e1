// The CUDA device: streams, graphs and memory of one GPU, communicators over NCCL and peer memory.

#include "worker/device/factory/cuda_device.h"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/launcher.h"
#include "worker/comm/communicator.h"
#include "worker/comm/cuda/cuda_communicator.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/cuda/cuda_copier.h"
#include "worker/device/cuda/cuda_reservation.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/fill_hashed.h"
#include "worker/device/cuda/pinned_pieces.h"
#include "worker/device/cuda/shared_memory.h"

namespace refrain::worker {

namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int device, size_t memory_limit)
      : context_(std::make_shared<CudaContext>(device, memory_limit)) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return context_->name(); }
  const kernels::KernelTable& kernels() const override {
    return invariant_ ? kernels::invariant_cuda_kernel_table() : kernels::cuda_kernel_table();
  }
  void make_batch_invariant() override { invariant_ = true; }
  kernels::WeightLayout weight_layout(DType) const override {
    return kernels::WeightLayout::kRowMajor;
  }
  size_t weight_bytes(DType dtype, int64_t n, int64_t k) const override {
    return static_cast<size_t>(n * k) * size_of(dtype);
  }
  void upload_weight(Stream& stream, const kernels::Weight& weight, void* to, int64_t row_begin,
                     int64_t rows, const void* source) override {
    const size_t row_bytes = static_cast<size_t>(weight.k) * size_of(weight.dtype);
    stream.copy(static_cast<std::byte*>(to) + static_cast<size_t>(row_begin) * row_bytes, source,
                static_cast<size_t>(rows) * row_bytes);
  }
  bool fill_hashed(Stream& stream, const kernels::HashedRows& rows) override {
    if (rows.dtype != DType::kBFloat16 && rows.dtype != DType::kFloat32) return false;
    context_->note("fill_hashed");
    context_->check(launch_fill_hashed(static_cast<CudaStream&>(stream).native(), rows),
                    "launch of fill_hashed");
    return true;
  }
  int warmup_runs() const override { return 1; }

  std::unique_ptr<Buffer> allocate(size_t bytes, MemoryTag tag) override {
    context_->refuse_in_capture("allocate");
    return make_cuda_buffer(context_, bytes, tag);
  }
  std::unique_ptr<Buffer> allocate_pinned(size_t bytes) override {
    context_->refuse_in_capture("allocate_pinned");
    return make_pinned_buffer(context_, bytes);
  }
  std::unique_ptr<Buffer> allocate_pinned_in_pieces(size_t bytes) override {
    context_->refuse_in_capture("allocate_pinned_in_pieces");
    return make_pinned_pieces(context_, bytes);
  }
  std::unique_ptr<Reservation> reserve(size_t bytes, MemoryTag tag) override {
    context_->refuse_in_capture("reserve");
    return make_cuda_reservation(context_, bytes, tag);
  }
  std::unique_ptr<Stream> create_stream(const DeviceShare& share) override {
    context_->refuse_in_capture("create_stream");
    return std::make_unique<CudaStream>(context_, share);
  }
  std::unique_ptr<Copier> create_copier() override {
    context_->refuse_in_capture("create_copier");
    return make_cuda_copier(context_);
  }
  std::vector<SharedPiece> share(const void* begin, size_t bytes) override {
    return share_memory(begin, bytes);
  }
  MemoryAccount memory() const override { return context_->memory(); }
  void push_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void pop_range() override { nvtxRangePop(); }

  Result<std::unique_ptr<Communicator>> create_communicator(const GroupOptions& options) override {
    context_->refuse_in_capture("create_communicator");
    return CudaCommunicator::join(context_, options);
  }

 private:
  std::shared_ptr<CudaContext> context_;
  bool invariant_ = false;
};

}  // namespace

int count_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

Result<std::unique_ptr<Device>> create_cuda_device(const CudaDeviceOptions& options) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();
    return fail_field("device", "there is no usable GPU: {}; use --device host",
                      cudaGetErrorString(status));
  }
  if (options.local_size > count) {
    return fail_field("tensor-parallel-size",
                      "{} ranks on this machine need {} GPUs, but {} can be seen (is "
                      "CUDA_VISIBLE_DEVICES set?); every rank has a GPU of its own",
                      options.local_size, options.local_size, count);
  }
  if (options.local_rank < 0 || options.local_rank >= count) {
    return fail_field("rank", "local rank {} has no GPU: {} can be seen, numbered from 0",
                      options.local_rank, count);
  }
  try {
    return std::make_unique<CudaDevice>(options.local_rank, options.memory_limit);
  } catch (const DeviceError& error) {
    return fail_field("device", "GPU {} cannot be used: {}", options.local_rank, error.what());
  }
}

}  // namespace refrain::worker
