#pragma once
// One rank's model: Program, weights, KV cache, dispatcher, captures, step buffers. Owned and
// called by the worker's device thread. Start: load, init_cache, capture, back_cache; then
// submit/wait for each step, at most kMaxInFlight submitted and not yet waited for (step n+1 is
// queued while n runs).

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/config/debug_options.h"
#include "runtime/config/model/lora_paths.h"
#include "runtime/config/model/model_config.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"
#include "worker/kv/kv_memory.h"
#include "worker/models/models.h"

namespace refrain::worker {

struct RunnerOptions {
  std::filesystem::path model_directory;
  ModelConfig model;
  ipc::WorkerConfig config;
  int rank = 0;
  std::string group_token;
  // Debugging (CG-27): before each step the arena and the reserved block are filled with NaN.
  bool poison_padding = false;
  // Debugging: every step gives this rank the logits of all ranks, whether a row needs them or not.
  bool keep_logits = false;
  DebugOptions debug = {};
  BuildModel build = build_model;
  LoraPaths adapters = {};
  std::filesystem::path draft_directory = {};  // of config.draft_model
  ModelConfig draft = {};
  MeetFn meet = {};  // how the ranks find each other (GroupOptions)
  std::string listen_on = {};
  StopFn stop_joining = {};
  // Which of the model's replicas this is, where they step together (CG-17), and what names them,
  // equal on all. They share memory and do not meet.
  int replica = 0;
  std::string replicas_token = {};
  // Execution contexts, each with an equal share of the device (CG-38). More than one is for ranks
  // that share memory and do not meet.
  int contexts = 1;
};

class ModelRunner {
 public:
  static constexpr int kMaxInFlight = 2;
  using ProgressFn = std::function<void(const ipc::Progress&)>;

  // Builds and checks the Program; joins the communicator. Input errors name their field.
  static Result<std::unique_ptr<ModelRunner>> create(RunnerOptions options, Device& device,
                                                     ProgressFn progress);
  virtual ~ModelRunner() = default;  // graphs first, then communicators

  virtual Result<ipc::Loaded> load() = 0;
  // Fixes the addresses of a cache of so many blocks of each state group, the most it can have.
  virtual Status init_cache(const std::vector<int64_t>& num_blocks) = 0;
  virtual Status capture() = 0;  // warm-ups and captures; ranks agree on every key
  // The cache's memory, unless it has it already, and what the start came to.
  virtual Result<ipc::Ready> back_cache() = 0;

  // For a configuration that differs by what a role decides: weights and blocks stay, graphs go;
  // capture() and back_cache() come next (CG-23). No step is in flight.
  virtual Status change_role(const ipc::WorkerConfig& config) = 0;

  // Where the blocks of all state groups lie, when the cache has its memory.
  virtual KvMemory kv_memory() const { return {}; }

  // Checks, fills the pinned block, dispatches, pads, runs the pieces (CG-34). Scheduling
  // mistakes (unknown slot, more tokens than the budget) are FatalErrors.
  virtual void submit(const ipc::Step& step) = 0;
  // Begins to read a LoRA adapter into host memory, beside the steps. `done` is called by another
  // thread when add_adapter need not wait.
  virtual Status read_adapter(const ipc::LoadAdapter& /*message*/,
                              const std::function<void()>& /*done*/) {
    return fail(ErrorCode::kInvalidArgument, "this runner has no LoRA adapters");
  }
  // Whether add_adapter is still to come.
  virtual bool reads_adapter(AdapterId /*id*/) const { return false; }
  // Steps may put it into a place now. What is wrong with it names file and tensor. Waits for the
  // end of its reading, and calls `alive` meanwhile.
  virtual Status add_adapter(AdapterId /*id*/, const std::function<void()>& /*alive*/) {
    return {};
  }
  virtual void unload_adapter(AdapterId /*id*/) {}
  virtual void forget_adapters() {}  // of a coordinator that is gone
  virtual void forget_steps() {}     // likewise: the next ones are numbered anew. None is in flight
  // Whether the tokens of all steps before it must be known when it is submitted: its rows' masks
  // follow from them, and submit waits for its end.
  virtual bool needs_tokens_before(const ipc::Step& /*step*/) const { return false; }
  // So that a step whose setup brings it need not wait for it. Returns at once; `done` is called by
  // another thread, whether or not it compiles.
  virtual void compile_grammar(std::string source, std::function<void()> done) = 0;
  // The oldest submitted step, tokens on every rank; none if `stop` (null: never) ended the wait.
  virtual std::optional<ipc::StepResult> wait_unless(const StopFn& stop) = 0;
  ipc::StepResult wait() { return *wait_unless({}); }
  virtual int in_flight() const = 0;
};

}  // namespace refrain::worker
