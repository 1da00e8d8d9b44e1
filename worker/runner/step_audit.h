#pragma once
// The audit of a step (CG-30, CG-41): what it wrote, held against an eager run of the same batch at
// its real sizes through the plain lowering. The second run has the inputs that prepare_inputs made
// for the first and leaves out prepare_inputs and sample, so it moves no slot and no random number;
// its keys and values are taken out of the cache again. Its exchanges are numbered like any others:
// every rank audits the same steps. Device thread; as long as the runner.

#include <memory>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/graph/batch_shape.h"
#include "worker/graph/lowering.h"
#include "worker/kv/kv_cache.h"

namespace refrain::worker {

class StepAudit {
 public:
  // Throws OutOfMemory: it has a buffer for one layer's keys and values of max_tokens tokens.
  StepAudit(Device& device, const KvCache& cache, int32_t block_size, int32_t max_tokens);

  struct Audited {
    const Lowering& ran;  // what the step ran through
    int32_t padded_reqs;  // R of its key
    const BatchShape& batch;
    std::vector<bool> greedy;  // by row: it sampled, and plainly greedily
    const int32_t* tokens;     // [R] as sampled
    std::string key;           // "FULL 8"
  };
  // The step has been launched; what was submitted before it, too. Waits for it. `stream` is idle
  // afterwards. `bitwise`: kernels give equal bits whatever the padding, as the host device's do.
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

  Device& device_;
  const KvCache& cache_;
  const int32_t block_size_;
  std::unique_ptr<Buffer> rows_, pinned_rows_;  // of one layer
};

}  // namespace refrain::worker
