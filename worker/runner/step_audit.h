#pragma once
// The audit of a step (CG-30, CG-41): what it wrote, held against an eager run of the same batch at
// its real sizes through the plain lowering. The second run has the inputs that prepare_inputs made
// for the first; it samples into memory of its own, and its keys and values are taken out of the
// cache again, so it moves no slot and no random number. Its exchanges are numbered like any
// others: every rank audits the same steps. Device thread; as long as the runner.

#include <memory>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/graph/batch_shape.h"
#include "worker/graph/lowering.h"
#include "worker/kv/kv_cache.h"
#include "worker/runner/input_buffers.h"

namespace refrain::worker {

class StepAudit {
 public:
  // Throws OutOfMemory: it has a buffer for one layer's keys and values of a largest batch.
  StepAudit(Device& device, const KvCache& cache, const InputSizes& sizes);

  struct Row {
    SlotId slot;
    bool samples, greedy;  // greedy: plainly so, its token is that of the greatest logit
    bool counts;           // its slot counts the tokens it gave
  };
  struct Audited {
    const Lowering& ran;  // what the step ran through, at `key`
    BatchDescriptor key;
    RuntimeMode mode;
    const BatchShape& batch;
    std::vector<Row> rows;
    const int32_t* tokens;  // [R] as sampled
  };
  // The step, and all that was submitted before it, has ended; `stream` is idle afterwards.
  // `bitwise`: kernels give equal bits whatever the padding, as the host device's do.
  ipc::AuditResult run(const Audited& step, const Lowering& plain, Stream& stream, bool bitwise);

 private:
  struct Written {
    std::vector<float> logits;                   // [R, vocab]
    std::vector<std::vector<std::byte>> layers;  // [T, (K, V) * kv_heads * head_dim] each
  };
  Written read(const Lowering& lowering, int32_t padded_reqs, const BatchShape& batch,
               Stream& stream);
  void copy_rows(const OpContext& context, const KvLayer& layer, int32_t tokens, bool restore);
  void restore(const Lowering& lowering, const Written& written, int32_t tokens, Stream& stream);
  void clear_rows(const Lowering& lowering, int32_t tokens, Stream& stream);
  void run_again(const Audited& step, const Lowering& plain, Stream& stream);
  void add_to_count(const Lowering& plain, SlotId slot, TokenId token, int32_t change,
                    Stream& stream);

  struct Findings;
  void compare_inputs(const Audited& step, Stream& stream, Findings& findings);
  void compare_cache(const Audited& step, const Written& got, const Written& expected,
                     Findings& findings);
  void compare_rows(const Audited& step, const Lowering& plain, const Written& got,
                    const Written& expected, Findings& findings);

  Device& device_;
  const KvCache& cache_;
  const int32_t block_size_;
  std::unique_ptr<Buffer> rows_, pinned_rows_;  // of one layer
  std::unique_ptr<Buffer> last_token_;          // [S+1], the second run's
  std::unique_ptr<Buffer> sampled_;             // outputs_, pinned
  kernels::SampleOutputs outputs_;              // of the second run
  std::unique_ptr<Buffer> word_;                // pinned
};

}  // namespace refrain::worker
