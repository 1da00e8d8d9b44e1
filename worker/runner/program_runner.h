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
#include "worker/runner/adapter_places.h"
#include "worker/runner/attention_planner.h"
#include "worker/runner/counter_check.h"
#include "worker/runner/hosted_program.h"
#include "worker/runner/idle_times.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/program_values.h"
#include "worker/runner/prompt_scorer.h"
#include "worker/runner/split_run.h"
#include "worker/runner/step_audit.h"
#include "worker/runner/step_writer.h"
#include "worker/runner/value_dump.h"

namespace refrain::worker {

class ProgramRunner final : public ModelRunner {
 public:
  static Result<std::unique_ptr<ProgramRunner>> create(RunnerOptions options, Device& device,
                                                       ProgressFn progress);

  Result<ipc::Loaded> load() override;
  Status init_cache(const std::vector<int64_t>& num_blocks) override;
  Status capture() override;
  Result<ipc::Ready> back_cache() override;
  KvMemory kv_memory() const override;
  void submit(const ipc::Step& step) override;
  bool needs_tokens_before(const ipc::Step& step) const override;
  void compile_grammar(std::string source, std::function<void()> done) override {
    grammars_->compile_ahead(std::move(source), std::move(done));
  }
  std::optional<ipc::StepResult> wait_unless(const StopFn& stop) override;
  Status load_adapter(const ipc::LoadAdapter& message, const std::function<void()>& alive) override;
  void unload_adapter(AdapterId id) override;
  void forget_adapters() override;
  int in_flight() const override { return num_in_flight_; }

  // For tests, comparisons and debugging.
  const GraphPool& pool() const { return *pool_; }
  HostedProgram& hosted() { return *programs_.front(); }  // the language model
  const KvCache& kv_cache() const { return *hosted().cache; }
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
    bool ends = true;  // false: a later step goes on with its run
    bool decode = false;
    int32_t num_tokens = 0, num_reqs = 0;
    bool with_logprobs = false, with_top = false;
    std::vector<bool> samples;                                       // by row
    std::vector<SlotId> slots;                                       // by row
    std::vector<std::shared_ptr<GrammarMasks::Follower>> followers;  // by row; null: none samples
    std::vector<GrammarMasks::Row> masks;  // that it waits for, until they are asked for
    std::vector<int32_t> num_logits;       // by row: its rows of logits
    ipc::AuditResult audit;
    ipc::PromptScores prompt;
    std::vector<int32_t> num_logprobs;  // by row; -1: not asked or not sampled
    std::unique_ptr<Event> begun;       // of its ops; only with time_steps
    std::unique_ptr<Event> done;
    TimePoint start;
  };

  ProgramRunner(RunnerOptions options, Device& device, ProgressFn progress);

  // start-up
  const HostedProgram& hosted() const { return *programs_.front(); }
  HostedProgram* draft() const { return programs_.size() > 1 ? programs_[1].get() : nullptr; }
  Result<Weights> load_checkpoint(const HostedProgram& of, const ModelConfig& model,
                                  const std::filesystem::path& directory);
  std::vector<int64_t> of_draft(const std::vector<int64_t>& num_blocks) const;
  void back_caches(const std::vector<int64_t>& num_blocks);
  std::vector<ipc::StateGroup> groups() const;
  Result<std::vector<ipc::StateGroup>> fitting_groups() const;
  void prepare_capture_batch(const BatchDescriptor& key);
  void capture_program(HostedProgram& program, const std::string& prefix);
  std::vector<BatchDescriptor> uncaptured_sizes(const HostedProgram& program) const;
  bool any_rank_failed(bool failed_here);
  ipc::Ready make_ready() const;
  void report(ipc::StartPhase phase, int64_t done, int64_t total, std::string detail) const;

  // steps
  void run_ops(const ipc::Step& step, const BatchShape& batch, InFlight& flight);
  // CG-34: whether a graph ran.
  bool forward(const HostedProgram& program, const Dispatch& dispatch, const BatchShape& batch);
  BatchDescriptor executed_key(const HostedProgram& program, const Dispatch& dispatch) const;
  void run_draft(const BatchShape& batch);
  void run_part(const ipc::Step& step, const BatchShape& batch, InFlight& flight);
  void audit(const BatchShape& batch, InFlight& flight);
  void poison();
  void place_adapters(const ipc::Step& step);
  void note_row_outputs(const ipc::Step& step, InFlight& flight) const;
  ipc::StepResult make_result(InFlight& flight) const;
  void follow_grammars(const InFlight& flight, const ipc::StepResult& result);
  void check_turn(const InFlight& flight) const;
  void add_tokens(const InFlight& flight, ipc::StepResult& result) const;
  void add_pooled(const InFlight& flight, ipc::StepResult& result) const;
  int32_t tokens_of(const InFlight& flight, size_t row) const;
  void add_logprobs(const InFlight& flight, ipc::StepResult& result) const;

  RunnerOptions options_;
  Device& device_;
  ProgressFn progress_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<InputBuffers> buffers_;
  std::unique_ptr<ProgramValues> draft_values_;  // null: no draft model
  std::unique_ptr<GrammarMasks> grammars_;
  std::unique_ptr<StepWriter> writer_;
  std::unique_ptr<AttentionPlanner> planner_;
  std::unique_ptr<AdapterPlaces> adapters_;  // null: the group has no LoRA adapters
  std::unique_ptr<Filler> poison_;
  std::unique_ptr<Buffer> agreement_, agreement_pinned_;  // one float
  std::unique_ptr<GraphPool> pool_;
  std::vector<std::unique_ptr<HostedProgram>> programs_;  // by ipc::ProgramId
  std::unique_ptr<SplitRun> split_;                       // null: every run goes through all pieces
  std::unique_ptr<PromptScorer> scorer_;  // null: steps of this group score no prompts
  CaptureResult captured_;                // of all programs
  std::vector<int64_t> num_blocks_;       // by state group, with memory
  std::array<InFlight, kMaxInFlight> flights_;
  static_assert(kernels::kTurns >= kMaxInFlight);  // no turn's memory is used again too early
  int first_flight_ = 0, num_in_flight_ = 0;
  int32_t last_logits_ = 0;  // rows of the step last submitted
  int32_t last_padded_ = 0;  // of those it ran with
  const Lowering* last_lowering_ = nullptr;
  bool eager_at_key_ = false;
  std::unique_ptr<ValueDump> dump_;
  std::unique_ptr<StepAudit> audit_;  // null: no step asks for one
  std::unique_ptr<IdleTimes> idle_times_;
  std::unique_ptr<CounterCheck> counter_check_;
};

}  // namespace refrain::worker
