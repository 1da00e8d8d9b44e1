#pragma once
// A graph of what a function launches, captured once and replayed; and the counts that the stream's
// kernels keep, which every replay leaves at zero.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/launcher.h"
#include "kernels/cuda/limits.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {

class Captured {
 public:
  // `record` has run once before: what a kernel needs once comes before the capture.
  template <class Record>
  Captured(StreamRef stream, Record record) : stream_(launcher(stream).stream) {
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    record();
    check_cuda(cudaStreamEndCapture(stream_, &graph_), "end capture");
    check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Captured() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  void replay() { check_cuda(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }
  cudaGraph_t graph() const { return graph_; }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

inline void expect_counts_are_zero(Harness& harness) {
  const Arrivals& arrivals = launcher(harness.stream()).arrivals;
  const std::vector<uint32_t> zeros(kMaxArrivals, 0);
  ASSERT_EQ(harness.get(arrivals.attention, kMaxArrivals), zeros) << "attention's counts";
  ASSERT_EQ(harness.get(arrivals.greedy, kMaxArrivals), zeros) << "greedy sampling's counts";
}

// The sizes that are captured by default, up to 512.
inline std::vector<int32_t> captured_sizes() {
  std::vector<int32_t> sizes = {1, 2, 4};
  for (int32_t size = 8; size <= 256; size += 8) sizes.push_back(size);
  sizes.push_back(512);
  return sizes;
}

// Of `size` rows: all, few and none of them live, in turns.
inline std::vector<int32_t> live_counts(int32_t size) {
  std::vector<int32_t> counts;
  for (const int32_t live : {1, size, 2, 3, 0, size / 2, 1, size}) {
    if (live <= size) counts.push_back(live);
  }
  return counts;
}

}  // namespace refrain::kernels
