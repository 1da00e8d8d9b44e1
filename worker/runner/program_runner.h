#pragma once
// The ModelRunner: one language model's Program on one device. Start-up in
// program_runner_start.cpp, steps in program_runner.cpp. Device thread. Members are destroyed last
// to first: executables, then buffers, then the communicator, so graphs die before communicators.

#include <array>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "worker/graph/capturer.h"
#include "worker/graph/graph_pool.h"
#include "worker/kv/kv_cache.h"
#include "worker/runner/counter_check.h"
#include "worker/runner/hosted_program.h"
#include "worker/runner/idle_times.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/step_audit.h"
#include "worker/runner/step_writer.h"
#include "worker/runner/value_dump.h"

namespace refrain::worker {

class ProgramRunner final : public ModelRunner {
 public:
  static Result<std::unique_ptr<ProgramRunner>> create(RunnerOptions options, Device& device,
                                                       ProgressFn progress);

  Result<ipc::Loaded> load() override;
  Status init_cache(int64_t num_kv_blocks) override;
  Status capture() override;
  Result<ipc::Ready> back_cache() override;
  void submit(const ipc::Step& step) override;
  std::optional<ipc::StepResult> wait_unless(const StopFn& stop) override;
  int in_flight() const override { return num_in_flight_; }

  // For tests, comparisons and debugging.
  const GraphPool& pool() const { return *pool_; }
  HostedProgram& hosted() { return *hosted_; }
  const KvCache& kv_cache() const { return *kv_cache_; }
  // Logits of the rows of the step last submitted, which must be waited for: [R, vocab_size].
  std::vector<float> read_logits();
  // From now on a step runs the pieces of its key without their graphs, splitting ops as the replay
  // does (CG-28); mode NONE in the result.
  void run_eager_at_key(bool on) { eager_at_key_ = on; }

 private:
  struct InFlight {
    StepId step = 0;
    Dispatch dispatch;
    uint32_t turn = 0;  // if it has tokens, else no op ran
    bool ran_graph = false;
    bool decode = false;
    int32_t num_tokens = 0, num_reqs = 0;
    bool with_logprobs = false, with_top = false;
    std::vector<bool> samples;  // by row
    std::vector<SlotId> slots;  // by row
    ipc::AuditResult audit;
    std::vector<int32_t> num_logprobs;  // by row; -1: not asked or not sampled
    std::unique_ptr<Event> begun;       // of its ops; only with time_steps
    std::unique_ptr<Event> done;
    TimePoint start;
  };

  ProgramRunner(RunnerOptions options, Device& device, ProgressFn progress);

  // start-up
  Result<Weights> load_checkpoint();
  Result<int64_t> fitting_kv_blocks() const;
  void prepare_capture_batch(const BatchDescriptor& key);
  std::vector<BatchDescriptor> uncaptured_sizes() const;
  bool any_rank_failed(bool failed_here);
  ipc::Ready make_ready() const;
  void report(ipc::StartPhase phase, int64_t done, int64_t total, std::string detail) const;

  // steps
  void run_ops(const ipc::Step& step, const BatchShape& batch, InFlight& flight);
  // CG-34: whether a graph ran.
  bool forward(ipc::ForwardMode mode, const Dispatch& dispatch, const BatchShape& batch);
  BatchDescriptor executed_key(const Dispatch& dispatch) const;
  void audit(const BatchShape& batch, InFlight& flight);
  void poison();
  void note_row_outputs(const ipc::Step& step, InFlight& flight) const;
  ipc::StepResult make_result(const InFlight& flight) const;
  void name_rows_without_logit(const InFlight& flight, ipc::StepResult& result) const;
  void add_logprobs(const InFlight& flight, ipc::StepResult& result) const;

  RunnerOptions options_;
  Device& device_;
  ProgressFn progress_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<InputBuffers> buffers_;
  std::unique_ptr<StepWriter> writer_;
  std::unique_ptr<KvCache> kv_cache_;
  std::unique_ptr<Filler> poison_;
  std::unique_ptr<Buffer> agreement_, agreement_pinned_;  // one float
  std::unique_ptr<GraphPool> pool_;
  std::unique_ptr<HostedProgram> hosted_;
  CaptureResult captured_;
  std::array<InFlight, kMaxInFlight> flights_;
  static_assert(kernels::kTurns >= kMaxInFlight);  // no turn's memory is used again too early
  int first_flight_ = 0, num_in_flight_ = 0;
  int32_t last_reqs_ = 0;    // of the step last submitted
  int32_t last_padded_ = 0;  // R it ran with
  const Lowering* last_lowering_ = nullptr;
  bool eager_at_key_ = false;
  std::unique_ptr<ValueDump> dump_;
  std::unique_ptr<StepAudit> audit_;  // null: no step asks for one
  std::unique_ptr<IdleTimes> idle_times_;
  std::unique_ptr<CounterCheck> counter_check_;
};

}  // namespace refrain::worker
