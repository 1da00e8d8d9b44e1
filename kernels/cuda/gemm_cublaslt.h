#pragma once
// linear by cuBLASLt: descriptors and algorithm of every shape seen, chosen once by cuBLASLt's
// heuristic and kept. The warm-up run before a capture makes the plans that the capture uses. One
// per stream's launcher; used by that stream's thread.

#include <cublasLt.h>

#include <memory>

#include "kernels/core/kernel_table.h"
#include "kernels/core/op_args.h"

namespace refrain::kernels {

class GemmPlans {
 public:
  GemmPlans();
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  // Enqueues out = in · weightᵀ (+ residual) (+ bias); false, and nothing enqueued, if cuBLASLt has
  // no algorithm for these types, strides and alignments.
  bool run(StreamRef stream, const LinearArgs& args);
  size_t size() const;  // shapes known

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

// Throws FatalError naming the call when the status is not success.
void check_cublas(cublasStatus_t status, const char* call);

}  // namespace refrain::kernels
