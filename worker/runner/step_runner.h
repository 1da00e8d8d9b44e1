#pragma once
// Runs the steps of one execution context (CG-34): checks, fills the pinned block, dispatches,
// pads, runs the pieces, reads the outputs; kMaxInFlight of them at most are submitted and not yet
// waited for. Device thread, which may have steps of several contexts in flight: they run at the
// same time.

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "worker/graph/capturer.h"
#include "worker/runner/adapter_places.h"
#include "worker/runner/attention_planner.h"
#include "worker/runner/counter_check.h"
#include "worker/runner/execution_context.h"
#include "worker/runner/forward.h"
#include "worker/runner/idle_times.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/prompt_scorer.h"
#include "worker/runner/split_run.h"
#include "worker/runner/step_audit.h"
#include "worker/runner/step_results.h"
#include "worker/runner/step_writer.h"
#include "worker/runner/value_dump.h"
#include "worker/runner/value_memory.h"

namespace refrain::worker {

// What all execution contexts of a worker share besides weights and blocks.
struct SlotsOfWorker {
  std::unique_ptr<SlotStates> states;
  std::unique_ptr<SlotTable> table;
  std::unique_ptr<GrammarMasks> grammars;
  std::unique_ptr<AdapterPlaces> adapters;  // null: the group has no LoRA adapters
};

class StepRunner {
 public:
  static constexpr int kMaxInFlight = ModelRunner::kMaxInFlight;
  // All outlive it; the context has its buffers. Throws OutOfMemory.
  static Result<std::unique_ptr<StepRunner>> create(const RunnerOptions& options, Device& device,
                                                    ExecutionContext& context,
                                                    SlotsOfWorker& slots);
  // A share's launches run behind the caller's back: they have ended before memory goes.
  ~StepRunner();

  // When the Programs have their caches: addresses of all values, memory for audits.
  Status bind();
  CaptureResult capture(const ModelRunner::ProgressFn& progress);
  void set_num_blocks(std::vector<int64_t> num_blocks) {
    writer_.set_num_blocks(std::move(num_blocks));
  }

  // As those of ModelRunner.
  void submit(const ipc::Step& step);
  bool needs_tokens_before(const ipc::Step& step) const;
  std::optional<ipc::StepResult> wait_unless(const StopFn& stop);
  ipc::StepResult wait() { return *wait_unless({}); }
  int in_flight() const { return num_in_flight_; }

  // For tests, comparisons and debugging.
  ExecutionContext& context() { return context_; }
  // Logits of the rows of the step last submitted, which must be waited for: [R, vocab_size].
  std::vector<float> read_logits();
  // As Forward's; mode NONE in the result.
  void run_eager_at_key(bool on) { forward_.run_eager_at_key(on); }

 private:
  StepRunner(const RunnerOptions& options, Device& device, ExecutionContext& context,
             SlotsOfWorker& slots);
  HostedProgram& model() const { return context_.model(); }
  Stream& stream() const { return *context_.stream; }

  Dispatch dispatch(const ipc::Step& step, const BatchShape& shape) const;
  void run_idle(StepInFlight& flight);
  void run_ops(const ipc::Step& step, const BatchShape& batch, StepInFlight& flight);
  void run_draft(const BatchShape& batch);
  void run_part(const ipc::Step& step, const BatchShape& batch, StepInFlight& flight);
  void audit(const BatchShape& batch, StepInFlight& flight);
  void poison();
  void place_adapters(const ipc::Step& step);
  void follow_grammars(const StepInFlight& flight, const ipc::StepResult& result);

  const RunnerOptions& options_;
  Device& device_;
  ExecutionContext& context_;
  SlotsOfWorker& slots_;
  StepWriter writer_;
  StepResults results_;
  HiddenReaders readers_;
  AttentionPlanner planner_;
  Forward forward_;
  std::unique_ptr<SplitRun> split_;       // null: every run goes through all pieces
  std::unique_ptr<PromptScorer> scorer_;  // null: steps of this group score no prompts
  std::unique_ptr<Filler> poison_;
  std::unique_ptr<StepAudit> audit_;  // null: no step asks for one
  std::unique_ptr<ValueDump> dump_;
  std::unique_ptr<IdleTimes> idle_times_;
  std::unique_ptr<CounterCheck> counter_check_;
  std::array<StepInFlight, kMaxInFlight> flights_;
  static_assert(kernels::kTurns >= kMaxInFlight);  // no turn's memory is used again too early
  int first_flight_ = 0, num_in_flight_ = 0;
  int32_t last_logits_ = 0;  // rows of the step last submitted
  int32_t last_padded_ = 0;  // of those it ran with
  const Lowering* last_lowering_ = nullptr;
};

}  // namespace refrain::worker
