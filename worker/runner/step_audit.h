#pragma once
// The audit of a step (CG-30, CG-41): what it wrote, held against an eager run of the same batch at
// its real sizes through the plain lowering. The second run has the inputs that prepare_inputs made
// for the first; it samples into memory of its own, and its keys and values are taken out of the
// cache again, so it moves no slot and no random number. Its exchanges are numbered like any
// others: every rank audits the same steps. The device compares; the host reads a distance a row.
// Device thread; as long as the runner.

#include <memory>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/dispatch/batch_shape.h"
#include "worker/graph/lowering.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/logits.h"
#include "worker/runner/state_rows.h"
#include "worker/runner/value_memory.h"

namespace refrain::worker {

class StepAudit {
 public:
  // Throws OutOfMemory: on the device it has two buffers for one layer's keys and values of a
  // largest batch and one for its logits, in pinned memory one for the keys and values of all
  // layers.
  StepAudit(Device& device, const Lowering& plain, const KvCache& cache, const InputSizes& sizes,
            const SlotStates& slots);

  struct Row {
    SlotId slot;
    bool samples, greedy;  // greedy: plainly so, its token is that of the greatest logit
    bool counts;           // its slot counts the tokens it gave
  };
  struct Audited {
    const Lowering& ran;  // what the step ran through, at `key`
    BatchDescriptor key;
    ipc::RuntimeMode mode;
    const BatchShape& batch;
    std::vector<Row> rows;             // of logits
    const std::vector<SlotId>& slots;  // of the requests
    const int32_t* tokens;             // [R] as sampled
  };
  // In front of a step that will be audited: what the states of its rows' slots are then.
  void before(const std::vector<SlotId>& slots, Stream& stream);
  // The step, and all that was submitted before it, has ended; `stream` is idle afterwards.
  // `bitwise`: kernels give equal bits whatever the padding, as the host device's do.
  ipc::AuditResult run(const Audited& step, const Lowering& plain, Stream& stream, bool bitwise);

 private:
  struct Findings;

  // The first run's keys, values and logits, kept while the second overwrites them.
  void keep(const Audited& step, Stream& stream);
  void clear_rows(const Lowering& plain, int32_t tokens, Stream& stream);
  void run_again(const Audited& step, const Lowering& plain, Stream& stream, bool bitwise);
  void add_to_counts(const Audited& step, const Lowering& plain, const int32_t* tokens,
                     int32_t change, Stream& stream);
  // Fills distances_; the cache has the first run's keys and values again.
  void compare_and_restore(const Audited& step, const Lowering& plain, Stream& stream);

  void judge_inputs(const Audited& step, Stream& stream, Findings& findings);
  void judge_cache(const Audited& step, Findings& findings) const;
  void judge_rows(const Audited& step, const Lowering& plain, Stream& stream, Findings& findings);
  float second_logit(const LogitShards& logits, int32_t row, TokenId token, Stream& stream);

  const StateRows state_;
  std::unique_ptr<Buffer> first_rows_, rows_;  // of one layer, [T, bytes of a token]
  std::unique_ptr<Buffer> kept_rows_;          // of all layers one after the other, pinned
  std::unique_ptr<Buffer> first_logits_;       // [shards][R, cols]
  size_t num_parts_ = 0, num_states_ = 0;      // over all layers
  std::unique_ptr<Buffer> states_before_, first_states_;  // of the rows' slots
  std::unique_ptr<Buffer> distances_;   // pinned: [parts][T], [states][R], [shards][R]
  std::unique_ptr<Buffer> slots_;       // [T] pinned
  std::unique_ptr<Buffer> last_token_;  // [S+1], the second run's
  std::unique_ptr<Buffer> sampled_;     // outputs_, pinned
  std::vector<Addresses> outputs_;      // of the second run, by ValueId
  const int32_t* tokens_;               // of these, [R]
  std::unique_ptr<Buffer> words_;       // [R] pinned
  const Filler nan_;
};

}  // namespace refrain::worker
