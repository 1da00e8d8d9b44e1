#pragma once
// The CUDA device's stream: non-blocking, with a cuBLASLt workspace of its own. Kernels of a share
// of the device make their grids for so many multiprocessors. Captures are thread-local; what the
// host device refuses during a capture is refused here and drops it.

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/launcher.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/device.h"

namespace refrain::worker {

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaContext> context, const DeviceShare& share);
  ~CudaStream() override;

  kernels::StreamRef ref() override { return {&launcher_}; }
  void copy(void* to, const void* from, size_t bytes) override;
  void copy_rows(std::span<const CopyRows> pieces, size_t place) override;
  void synchronize() override;
  std::unique_ptr<Event> record() override;
  std::unique_ptr<Event> record_time() override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  bool capturing() const override { return capturing_; }
  void launch(Graph& graph) override;
  void tune(bool on) override;
  std::vector<std::string> slow_launches() const override;
  std::vector<KernelCounters> counters() const override;

  cudaStream_t native() const { return launcher_.stream; }
  // While capturing: the graph keeps `hold`.
  void hold(std::shared_ptr<const void> hold);
  // While capturing: goes into the graph's digest.
  void note_collective(const std::string& what);
  void drop_capture();

 private:
  std::shared_ptr<CudaContext> context_;
  std::unique_ptr<Buffer> workspace_;
  kernels::GemmPlans gemm_plans_;
  kernels::CudaLauncher launcher_;
  bool capturing_ = false;
  // Of the capture in progress.
  std::vector<std::shared_ptr<const void>> holds_;
  std::string collectives_;
};

}  // namespace refrain::worker
