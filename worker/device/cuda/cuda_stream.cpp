#include "worker/device/cuda/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/limits.h"
#include "worker/device/cuda/copy_pieces.h"
#include "worker/device/cuda/cuda_graph.h"

namespace refrain::worker {

namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr size_t kArrivalBytes = kernels::kMaxArrivals * sizeof(uint32_t);  // of each kernel

class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<CudaContext> context, cudaStream_t stream, EventKind kind)
      : context_(std::move(context)), kind_(kind), event_(context_->take_event(kind)) {
    context_->check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~CudaEvent() override { context_->return_event(event_, kind_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool query() const override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    context_->check(status, "cudaEventQuery");
    return true;
  }
  bool wait(const StopFn& stop) override {
    context_->refuse_in_capture("Event::wait");
    return context_->wait([this] { return cudaEventQuery(event_); }, "waiting for an event", stop);
  }
  double seconds_since(const Event& earlier) const override {
    float ms = 0;
    context_->check(
        cudaEventElapsedTime(&ms, static_cast<const CudaEvent&>(earlier).event_, event_),
        "cudaEventElapsedTime");
    return ms * 1e-3;
  }

 private:
  std::shared_ptr<CudaContext> context_;
  EventKind kind_;
  cudaEvent_t event_;
};

}  // namespace

CudaStream::CudaStream(std::shared_ptr<CudaContext> context, const DeviceShare& share)
    : context_(std::move(context)),
      workspace_(
          make_cuda_buffer(context_, kWorkspaceBytes + 2 * kArrivalBytes, MemoryTag::kOther)) {
  context_->check(cudaStreamCreateWithFlags(&launcher_.stream, cudaStreamNonBlocking),
                  "cudaStreamCreate");
  launcher_.cublas_lt = context_->cublas_lt();
  launcher_.workspace = workspace_->data();
  launcher_.workspace_bytes = kWorkspaceBytes;
  const auto arrivals = [&](size_t owner) {  // behind the workspace
    return reinterpret_cast<uint32_t*>(static_cast<std::byte*>(workspace_->data()) +
                                       kWorkspaceBytes + owner * kArrivalBytes);
  };
  launcher_.arrivals = {arrivals(0), arrivals(1)};
  launcher_.gemm_plans = &gemm_plans_;
  launcher_.gemm_choices = &context_->gemm_choices();
  launcher_.sm_count = share.size(context_->sm_count());
  launcher_.hopper = context_->hopper();
  context_->add_launcher(&launcher_);
  context_->check(cudaMemsetAsync(workspace_->data(), 0, workspace_->bytes(), launcher_.stream),
                  "cudaMemset of a workspace");
}

CudaStream::~CudaStream() {
  drop_capture();
  context_->remove_launcher(&launcher_);
  if (context_->abandoned()) return;
  cudaStreamSynchronize(launcher_.stream);  // the workspace goes next
  cudaStreamDestroy(launcher_.stream);
}

void CudaStream::copy(void* to, const void* from, size_t bytes) {
  context_->note("copy");
  if (bytes == 0) return;
  context_->check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, launcher_.stream),
                  "cudaMemcpyAsync");
}

void CudaStream::copy_rows(std::span<const CopyRows> pieces, size_t place) {
  context_->refuse_in_capture("copy_rows");
  context_->note("copy");
  if (pieces.empty()) return;
  context_->check(
      launch_copy_rows(launcher_.stream, pieces.data(), static_cast<int>(pieces.size()), place),
      "a copy of rows");
}

void CudaStream::tune(bool on) {
  launcher_.tunes = on;
  if (!on) context_->gemm_choices().save();
}

void CudaStream::synchronize() {
  context_->refuse_in_capture("synchronize");
  context_->wait([this] { return cudaStreamQuery(launcher_.stream); }, "waiting for a stream", {});
}

std::unique_ptr<Event> CudaStream::record() {
  context_->refuse_in_capture("record");
  return std::make_unique<CudaEvent>(context_, launcher_.stream, EventKind::kOrder);
}

std::unique_ptr<Event> CudaStream::record_time() {
  context_->refuse_in_capture("record_time");
  return std::make_unique<CudaEvent>(context_, launcher_.stream, EventKind::kTime);
}

std::vector<std::string> CudaStream::slow_launches() const {
  const auto& kinds = gemm_plans_.simple_kinds();
  return {kinds.begin(), kinds.end()};
}

std::vector<KernelCounters> CudaStream::counters() const {
  return {{"attention", launcher_.arrivals.attention, kernels::kMaxArrivals},
          {"sample (greedy rows)", launcher_.arrivals.greedy, kernels::kMaxArrivals}};
}

void CudaStream::begin_capture() {
  context_->refuse_in_capture("begin_capture");
  context_->note("begin_capture");
  context_->check(cudaStreamBeginCapture(launcher_.stream, cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCapture");
  capturing_ = true;
  context_->capturing = this;
}

std::unique_ptr<Graph> CudaStream::end_capture() {
  if (!capturing_) throw DeviceError("end_capture without a capture in progress on this stream");
  capturing_ = false;
  if (context_->capturing == this) context_->capturing = nullptr;
  auto holds = std::exchange(holds_, {});
  const std::string collectives = std::exchange(collectives_, {});
  cudaGraph_t recorded = nullptr;
  context_->check(cudaStreamEndCapture(launcher_.stream, &recorded), "cudaStreamEndCapture");
  return std::make_unique<CudaGraph>(context_, UniqueCudaGraph(recorded), std::move(holds),
                                     collectives, launcher_.stream);
}

void CudaStream::launch(Graph& graph) {
  context_->refuse_in_capture("launch(graph)");
  context_->note("launch of a graph");
  context_->check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).executable(), launcher_.stream),
                  "cudaGraphLaunch");
}

void CudaStream::hold(std::shared_ptr<const void> hold) {
  if (!capturing_ || std::find(holds_.begin(), holds_.end(), hold) != holds_.end()) return;
  holds_.push_back(std::move(hold));
}

void CudaStream::note_collective(const std::string& what) {
  if (capturing_) collectives_ += what + "\n";
}

void CudaStream::drop_capture() {
  if (!capturing_) return;
  capturing_ = false;
  if (context_->capturing == this) context_->capturing = nullptr;
  holds_.clear();
  collectives_.clear();
  cudaGraph_t recorded = nullptr;
  cudaStreamEndCapture(launcher_.stream, &recorded);
  cudaGetLastError();  // a capture that was broken already says so here
  if (recorded != nullptr) cudaGraphDestroy(recorded);
}

}  // namespace refrain::worker
