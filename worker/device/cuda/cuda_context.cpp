#include "worker/device/cuda/cuda_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "runtime/base/log.h"
#include "worker/device/cuda/cuda_stream.h"

namespace refrain::worker {

namespace {

constexpr std::chrono::milliseconds kLookEvery{2};

// In the user's cache folder; empty: there is none.
std::filesystem::path file_for(std::string owner) {
  std::filesystem::path folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0) {
    folder = cache;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0) {
    folder = std::filesystem::path(home) / ".cache";
  }
  if (folder.empty()) return {};
  std::ranges::replace_if(
      owner, [](char c) { return std::isalnum(c) == 0; }, '-');
  return folder / "refrain" / (owner + ".gemm");
}

}  // namespace

CudaContext::CudaContext(int device, size_t memory_limit)
    : device_(device), memory_limit_(memory_limit) {
  for (auto& events : events_) events.reserve(64);  // steps allocate nothing
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  name_ = properties.name;
  // Callers tell devices apart by the first word.
  if (!name_.starts_with("NVIDIA")) name_ = "NVIDIA " + name_;
  sm_count_ = properties.multiProcessorCount;
  hopper_ = properties.major == 9 && properties.minor == 0;
  if (const cublasStatus_t status = cublasLtCreate(&cublas_lt_); status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(fmt::format("cublasLtCreate: {}", cublasLtGetStatusString(status)));
  }
  const std::string owner = fmt::format("{} cuBLASLt {}", name_, cublasLtGetVersion());
  gemm_choices_ = std::make_unique<kernels::GemmChoices>(file_for(owner), owner);
}

CudaContext::~CudaContext() {
  if (abandoned_) return;
  for (const auto& events : events_) {
    for (const cudaEvent_t event : events) cudaEventDestroy(event);
  }
  cublasLtDestroy(cublas_lt_);
}

void CudaContext::check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // clears what does not stick
  std::string kernels;
  for (const kernels::CudaLauncher* launcher : launchers_) {
    if (*launcher->last_kernel == 0) continue;
    kernels +=
        fmt::format("{}{}", kernels.empty() ? "; last kernel: " : ", ", launcher->last_kernel);
  }
  throw DeviceError(fmt::format("{} on {} (device {}): {} ({}); last operation: {}{}", call, name_,
                                device_, cudaGetErrorString(status), cudaGetErrorName(status),
                                last_operation_, kernels));
}

void CudaContext::refuse_in_capture(std::string_view call) {
  if (capturing == nullptr) return;
  capturing->drop_capture();
  throw DeviceError(
      fmt::format("{} is not allowed while a stream is capturing; the capture was dropped", call));
}

MemoryAccount CudaContext::memory() {
  MemoryAccount account;
  check(cudaMemGetInfo(&account.free, &account.total), "cudaMemGetInfo");
  std::copy(std::begin(by_tag_), std::end(by_tag_), std::begin(account.by_tag));
  return account;
}

size_t CudaContext::over_limit(size_t more) const {
  if (memory_limit_ == 0) return 0;
  size_t used = more;
  for (const size_t bytes : by_tag_) used += bytes;
  return used > memory_limit_ ? used - memory_limit_ : 0;
}

cudaEvent_t CudaContext::take_event(EventKind kind) {
  auto& events = events_[static_cast<size_t>(kind)];
  if (!events.empty()) {
    const cudaEvent_t event = events.back();
    events.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  const unsigned flags = kind == EventKind::kTime ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
  return event;
}

bool CudaContext::wait(const std::function<cudaError_t()>& query, std::string_view call,
                       const StopFn& stop) {
  const auto begun = std::chrono::steady_clock::now();
  auto next_look = begun + kLookEvery;
  cudaError_t status = query();
  for (; status == cudaErrorNotReady; status = query()) {
    if (stop && stop()) return false;
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() < next_look) continue;
    for (Watch* watch : watches_) watch->look(next_look - begun);
    next_look = std::chrono::steady_clock::now() + kLookEvery;
  }
  check(status, call);
  for (Watch* watch : watches_) watch->look_after();
  return true;
}

void CudaContext::remove_watch(Watch* watch) { std::erase(watches_, watch); }

namespace {

constexpr size_t kAlignment = 256;

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(std::shared_ptr<CudaContext> context, size_t bytes, MemoryTag tag)
      : context_(std::move(context)), bytes_(bytes), tag_(tag) {
    counted_ = std::max<size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
    if (const size_t missing = context_->over_limit(counted_); missing > 0) {
      throw OutOfMemory(fmt::format("the memory limit has no {} bytes for {}: {} are missing",
                                    counted_, to_string(tag), missing),
                        missing);
    }
    const cudaError_t status = cudaMalloc(&data_, counted_);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const size_t free = context_->memory().free;
      throw OutOfMemory(fmt::format("{} has no {} bytes for {}: {} are free", context_->name(),
                                    counted_, to_string(tag), free),
                        counted_ > free ? counted_ - free : counted_);
    }
    context_->check(status, "cudaMalloc");
    context_->add_memory(counted_, tag_);
  }
  ~CudaBuffer() override {
    context_->drop_memory(counted_, tag_);
    if (context_->abandoned()) return;
    if (const cudaError_t status = cudaFree(data_); status != cudaSuccess) {
      log::error("cudaFree of {} ({}): {}", counted_, to_string(tag_), cudaGetErrorString(status));
    }
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<CudaContext> context_;
  size_t bytes_;
  size_t counted_ = 0;
  MemoryTag tag_;
  void* data_ = nullptr;
};

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(std::shared_ptr<CudaContext> context, size_t bytes)
      : context_(std::move(context)), bytes_(bytes) {
    context_->check(cudaSetDevice(context_->device()), "cudaSetDevice");  // of this thread
    const cudaError_t status =
        cudaHostAlloc(&data_, std::max(bytes, kAlignment), cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(fmt::format("the system gave no {} bytes of page-locked memory", bytes),
                        bytes);
    }
    context_->check(status, "cudaHostAlloc");
  }
  ~PinnedBuffer() override {
    if (context_->abandoned()) return;
    if (const cudaError_t status = cudaFreeHost(data_); status != cudaSuccess) {
      log::error("cudaFreeHost of {} bytes: {}", bytes_, cudaGetErrorString(status));
    }
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<CudaContext> context_;
  size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace

std::unique_ptr<Buffer> make_cuda_buffer(std::shared_ptr<CudaContext> context, size_t bytes,
                                         MemoryTag tag) {
  return std::make_unique<CudaBuffer>(std::move(context), bytes, tag);
}

std::unique_ptr<Buffer> make_pinned_buffer(std::shared_ptr<CudaContext> context, size_t bytes) {
  return std::make_unique<PinnedBuffer>(std::move(context), bytes);
}

}  // namespace refrain::worker
