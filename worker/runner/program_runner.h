#pragma once
// The ModelRunner: what a worker hosts, from start to end. Its Programs, their weights and blocks
// and the slots are its own; steps run in an execution context. Serving has one over the whole
// device. Device thread.

#include <memory>
#include <vector>

#include "worker/runner/adapter_reader.h"
#include "worker/runner/execution_context.h"
#include "worker/runner/program_caches.h"
#include "worker/runner/step_runner.h"

namespace refrain::worker {

class ProgramRunner final : public ModelRunner {
 public:
  static Result<std::unique_ptr<ProgramRunner>> create(RunnerOptions options, Device& device,
                                                       ProgressFn progress);

  Result<ipc::Loaded> load() override;
  Status init_cache(const std::vector<int64_t>& num_blocks) override;
  Status capture() override;
  Result<ipc::Ready> back_cache() override;
  Status change_role(const ipc::WorkerConfig& config) override;
  KvMemory kv_memory() const override;
  void submit(const ipc::Step& step) override { runner().submit(step); }
  bool needs_tokens_before(const ipc::Step& step) const override {
    return runner().needs_tokens_before(step);
  }
  void compile_grammar(std::string source, std::function<void()> done) override {
    slots_.grammars->compile_ahead(std::move(source), std::move(done));
  }
  std::optional<ipc::StepResult> wait_unless(const StopFn& stop) override {
    return runner().wait_unless(stop);
  }
  Status read_adapter(const ipc::LoadAdapter& message, const std::function<void()>& done) override;
  bool reads_adapter(AdapterId id) const override { return reader_ && reader_->has(id); }
  Status add_adapter(AdapterId id, const std::function<void()>& alive) override;
  void unload_adapter(AdapterId id) override;
  void forget_adapters() override;
  void forget_steps() override;
  int in_flight() const override { return runner().in_flight(); }

  // RunnerOptions::contexts of them; those after the first run steps that are submitted to them.
  StepRunner& runner(size_t context = 0) const { return *runners_[context]; }
  ExecutionContext& context(size_t index = 0) const { return *contexts_[index]; }

  // Of the first context, for tests, comparisons and debugging.
  const GraphPool& pool() const { return *context().pool; }
  HostedProgram& hosted() const { return context().model(); }  // the language model
  const KvCache& kv_cache() const { return *hosted().cache; }
  std::vector<float> read_logits() { return runner().read_logits(); }
  void run_eager_at_key(bool on) { runner().run_eager_at_key(on); }

 private:
  ProgramRunner(RunnerOptions options, Device& device, ProgressFn progress);

  Result<HostedPrograms> plan() const;
  Result<std::vector<HostedPrograms>> plan_contexts() const;
  Result<AdapterPlaces::Adapter> read(const ipc::LoadAdapter& message) const;
  Status prepare_steps();
  Status bind();
  Result<Weights> load_checkpoint(const HostedProgram& of, const ModelConfig& model,
                                  const std::filesystem::path& directory);
  Status load_weights_of_all();
  ipc::Ready make_ready() const;

  RunnerOptions options_;
  Device& device_;
  ProgressFn progress_;
  std::vector<std::unique_ptr<ExecutionContext>> contexts_;
  SlotsOfWorker slots_;  // its threads write into the contexts' buffers
  std::unique_ptr<ProgramCaches> caches_;
  std::vector<std::unique_ptr<StepRunner>> runners_;  // by context
  CaptureResult captured_;                            // of all
  std::unique_ptr<AdapterReader> reader_;             // null without LoRA
};

}  // namespace refrain::worker
