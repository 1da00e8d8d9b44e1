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
#include "runtime/config/model_config.h"
#include "worker/device/device.h"

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
  // Fixes the addresses of a cache of so many blocks, the most it can have.
  virtual Status init_cache(int64_t num_kv_blocks) = 0;
  virtual Status capture() = 0;  // warm-ups and captures; ranks agree on every key
  // The cache's memory, unless it has it already, and what the start came to.
  virtual Result<ipc::Ready> back_cache() = 0;

  // Checks, fills the pinned block, dispatches, pads, runs the pieces (CG-34). Scheduling
  // mistakes (unknown slot, more tokens than the budget) are FatalErrors.
  virtual void submit(const ipc::Step& step) = 0;
  // The oldest submitted step, tokens on every rank; none if `stop` (null: never) ended the wait.
  virtual std::optional<ipc::StepResult> wait_unless(const StopFn& stop) = 0;
  ipc::StepResult wait() { return *wait_unless({}); }
  virtual int in_flight() const = 0;
};

}  // namespace refrain::worker
