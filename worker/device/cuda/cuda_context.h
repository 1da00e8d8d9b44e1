#pragma once
// What a CUDA device, its streams, graphs, buffers and communicators share: the account of memory,
// the stream that captures, pooled events, and how errors are told. Device thread, except
// query_event. CUDA errors that stick end the process: DeviceError with the last operation.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/gemm_choices.h"
#include "kernels/cuda/launcher.h"
#include "worker/device/device.h"

namespace refrain::worker {

class CudaStream;

enum class EventKind : uint8_t { kOrder, kTime };  // kTime: for cudaEventElapsedTime

// Something a waiting device thread must look at: a communicator whose peers may be gone.
class Watch {
 public:
  virtual ~Watch() = default;
  // Throws DeviceError when waiting any longer is pointless.
  virtual void look(std::chrono::steady_clock::duration waited) = 0;
  // Throws DeviceError when what was waited for ended because an exchange was given up.
  virtual void look_after() = 0;
};

class CudaContext {
 public:
  // memory_limit: bytes that may be taken of the device; 0: no limit.
  CudaContext(int device, size_t memory_limit);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int device() const { return device_; }
  const std::string& name() const { return name_; }
  int sm_count() const { return sm_count_; }
  bool hopper() const { return hopper_; }  // compute capability 9.0
  cublasLtHandle_t cublas_lt() const { return cublas_lt_; }
  kernels::GemmChoices& gemm_choices() { return *gemm_choices_; }

  // Throws DeviceError naming the call and the last operation unless the status is success.
  void check(cudaError_t status, std::string_view call);
  // Throws DeviceError naming `call` and drops the capture when a stream is capturing.
  void refuse_in_capture(std::string_view call);
  void note(const char* operation) { last_operation_ = operation; }
  // Of each stream: kernels note their names in it.
  void add_launcher(const kernels::CudaLauncher* launcher) { launchers_.push_back(launcher); }
  void remove_launcher(const kernels::CudaLauncher* launcher) { std::erase(launchers_, launcher); }

  void add_memory(size_t bytes, MemoryTag tag) { by_tag_[static_cast<int>(tag)] += bytes; }
  // Bytes by which `more` would pass the limit; 0: it fits.
  size_t over_limit(size_t more) const;
  void drop_memory(size_t bytes, MemoryTag tag) { by_tag_[static_cast<int>(tag)] -= bytes; }
  MemoryAccount memory();

  cudaEvent_t take_event(EventKind kind);
  void return_event(cudaEvent_t event, EventKind kind) {
    events_[static_cast<size_t>(kind)].push_back(event);
  }

  // Waits until `query` no longer says cudaErrorNotReady, looking at the watches meanwhile, or
  // until `stop` (null: never) says so: false.
  bool wait(const std::function<cudaError_t()>& query, std::string_view call, const StopFn& stop);
  void add_watch(Watch* watch) { watches_.push_back(watch); }
  void remove_watch(Watch* watch);

  // The GPU will not answer any more: handles are left to the end of the process, because
  // freeing them would wait for ever.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

  CudaStream* capturing = nullptr;

 private:
  int device_;
  std::string name_;
  int sm_count_ = 0;
  bool hopper_ = false;
  size_t memory_limit_;
  cublasLtHandle_t cublas_lt_ = nullptr;
  std::unique_ptr<kernels::GemmChoices> gemm_choices_;
  const char* last_operation_ = "none";
  size_t by_tag_[kNumMemoryTags] = {};
  std::array<std::vector<cudaEvent_t>, 2> events_;  // free ones by kind
  std::vector<Watch*> watches_;
  std::vector<const kernels::CudaLauncher*> launchers_;
  bool abandoned_ = false;
};

// Counted in the account until destroyed; throws OutOfMemory with what is missing.
std::unique_ptr<Buffer> make_cuda_buffer(std::shared_ptr<CudaContext> context, size_t bytes,
                                         MemoryTag tag);
// Page-locked host memory; no part of the device's account.
std::unique_ptr<Buffer> make_pinned_buffer(std::shared_ptr<CudaContext> context, size_t bytes);

}  // namespace refrain::worker
