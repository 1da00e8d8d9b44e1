#include "worker/device/cuda/cuda_reservation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "worker/device/cuda/virtual_memory.h"

namespace refrain::worker {

namespace {

constexpr size_t kLeastHandle = size_t{64} << 20;  // of a large reservation

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void check(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  throw DeviceError(
      fmt::format("{} failed: error {} of the driver", call, static_cast<int>(status)));
}

class CudaReservation final : public Reservation {
 public:
  CudaReservation(std::shared_ptr<CudaContext> context, size_t bytes, MemoryTag tag)
      : context_(std::move(context)), bytes_(bytes), tag_(tag) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties_.location.id = context_->device();
    int shares = 0;
    virtual_memory().attribute(&shares,
                               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                               context_->device());
    if (shares != 0)  // Device::share
      properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    check(
        virtual_memory().granularity(&granularity_, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
    reserved_ = round_up(std::max<size_t>(bytes, 1), granularity_);
    if (virtual_memory().reserve(&address_, reserved_, 0, 0, 0) != CUDA_SUCCESS) {
      throw OutOfMemory(fmt::format("{} has no addresses for {} bytes of {}", context_->name(),
                                    reserved_, to_string(tag)),
                        reserved_);
    }
  }
  ~CudaReservation() override {
    context_->drop_memory(backed_, tag_);
    if (context_->abandoned()) return;
    // Unmapping does not wait for kernels that use the memory, unlike cudaFree.
    if (const cudaError_t status = cudaDeviceSynchronize(); status != cudaSuccess) {
      log::error("freeing {} bytes of {}: {}", backed_, to_string(tag_),
                 cudaGetErrorString(status));
    }
    if (backed_ > 0) virtual_memory().unmap(address_, backed_);
    virtual_memory().free(address_, reserved_);
  }
  CudaReservation(const CudaReservation&) = delete;
  CudaReservation& operator=(const CudaReservation&) = delete;

  void* data() const override { return reinterpret_cast<void*>(address_); }
  size_t bytes() const override { return bytes_; }
  size_t backed() const override { return std::min(backed_, bytes_); }

  void back(size_t bytes) override {
    context_->refuse_in_capture("back");
    REFRAIN_CHECK(bytes <= bytes_, "{} bytes of a reservation of {}", bytes, bytes_);
    const size_t target = round_up(bytes, granularity_);
    if (target <= backed_) return;
    if (const size_t missing = context_->over_limit(target - backed_); missing > 0) {
      throw OutOfMemory(fmt::format("the memory limit has no {} bytes for {}: {} are missing",
                                    target - backed_, to_string(tag_), missing),
                        missing);
    }
    const size_t before = backed_;
    // Few handles, since each that is shared is a descriptor; smaller ones where memory is scarce.
    for (size_t size = target - backed_; backed_ < target;
         size = std::min(size, target - backed_)) {
      if (map(size)) continue;
      if (size > kLeastHandle) {
        size = round_up(size / 2, granularity_);
        continue;
      }
      const size_t missing = target - backed_;
      unmap_to(before);
      const size_t free = context_->memory().free;
      throw OutOfMemory(fmt::format("{} has no {} bytes for {}: {} are free", context_->name(),
                                    target - before, to_string(tag_), free),
                        missing);
    }
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(virtual_memory().set_access(address_ + before, target - before, &access, 1),
          "cuMemSetAccess");
    context_->add_memory(target - before, tag_);
  }
  void trim(size_t bytes) override {
    const size_t before = backed_;
    unmap_to(round_up(bytes, granularity_));
    context_->drop_memory(before - backed_, tag_);
  }

 private:
  // One more handle; false: the GPU has no memory for it.
  bool map(size_t size) {
    CUmemGenericAllocationHandle handle{};
    const CUresult status = virtual_memory().create(&handle, size, &properties_, 0);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return false;
    check(status, "cuMemCreate");
    const CUresult mapped = virtual_memory().map(address_ + backed_, size, 0, handle, 0);
    check(virtual_memory().release(handle), "cuMemRelease");  // the mapping keeps the memory
    check(mapped, "cuMemMap");
    handles_.push_back(size);
    backed_ += size;
    return true;
  }
  // Whole handles only: those that begin at or after `bytes`.
  void unmap_to(size_t bytes) {
    while (!handles_.empty() && backed_ - handles_.back() >= bytes) {
      check(virtual_memory().unmap(address_ + backed_ - handles_.back(), handles_.back()),
            "cuMemUnmap");
      backed_ -= handles_.back();
      handles_.pop_back();
    }
  }

  std::shared_ptr<CudaContext> context_;
  size_t bytes_;
  MemoryTag tag_;
  CUmemAllocationProp properties_{};
  size_t granularity_ = 0, reserved_ = 0, backed_ = 0;
  std::vector<size_t> handles_;  // sizes, in the order of their addresses
  CUdeviceptr address_ = 0;
};

}  // namespace

std::unique_ptr<Reservation> make_cuda_reservation(std::shared_ptr<CudaContext> context,
                                                   size_t bytes, MemoryTag tag) {
  return std::make_unique<CudaReservation>(std::move(context), bytes, tag);
}

}  // namespace refrain::worker
