#pragma once
// linear by cuBLASLt: descriptors of every shape seen and its algorithm, chosen once and kept. In
// the warm-up runs at start (CudaLauncher::tunes) each shape gets one of its own: of large ones the
// fastest of those that cuBLASLt proposes, as long as there is time for it, else the first. Those
// that come later have that of their range of rows, which the warm-up came to. One per stream's
// launcher; used by that stream's thread.

#include <cublasLt.h>

#include <memory>
#include <set>
#include <string>

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
  // `invariant`: by the algorithm of invariant.h; all M have one, or none has.
  bool run(StreamRef stream, const LinearArgs& args, bool invariant = false);
  size_t size() const;        // shapes known
  size_t algorithms() const;  // chosen
  int64_t timed() const;      // of them: by their times

  // A launch that ran linear_simple instead: far slower than the memory allows. Logged once for
  // each kind of weight and rows, but for rows of float32, which are for comparisons.
  void note_simple(const LinearArgs& args);
  // "linear [64, 40] bfloat16, rows of float32", sorted.
  const std::set<std::string>& simple_kinds() const { return simple_kinds_; }

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
  std::set<std::string> simple_kinds_;
};

// KernelTable::planned_rows.
int32_t planned_rows(int32_t rows);

// Throws FatalError naming the call when the status is not success.
void check_cublas(cublasStatus_t status, const char* call);

}  // namespace refrain::kernels
