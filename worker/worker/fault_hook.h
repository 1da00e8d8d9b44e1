#pragma once
// A fault staged on purpose, for drills: `worker --fault SPEC`, off unless given. Owned by
// run_worker; fire() from any thread, the rest by the device thread.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/transfer/unreliable_transport.h"

namespace refrain::worker {

enum class FaultKind : uint8_t {
  kSpin,        // the device thread spins for ever
  kSkip,        // steps are dropped: their collectives are never launched, heartbeats go on
  kSlow,        // each of the next `steps` steps begins `ms` late
  kOom,         // the next step asks the device for more memory than there is
  kOomCapture,  // graphs are captured with `free_mib` MiB of device memory left
  kLose,        // of the reads of blocks of other groups one in `one_in` never ends by itself
  kHold,        // one in `one_in` of them is done `ms` late, at most `steps` at once
};

// SPEC: key=value, comma-separated. kind is needed; group, rank: of that group
// or rank alone; step: at this step of
// every group this process joins; token: at each step that has it among its tokens, as a request
// that ends its workers would; else at SIGUSR1.
struct FaultSpec {
  FaultKind kind = FaultKind::kSpin;
  std::optional<int> group;
  std::optional<int> rank;
  std::optional<StepId> step;
  std::optional<TokenId> token;
  int ms = 500;
  int steps = 8;
  int free_mib = 0;
  int one_in = 16;
};
Result<FaultSpec> parse_fault(std::string_view text);

class FaultHook {
 public:
  explicit FaultHook(const FaultSpec& spec) : spec_(spec) {}

  void fire() { fired_ = true; }
  // Memory to hold while graphs are captured: all but free_mib MiB.
  std::vector<std::unique_ptr<Buffer>> before_capture(Device& device) const;
  PlannedFaults of_transfers() const;
  // False: the step is not to be run.
  bool before_step(const ipc::Step& step, Device& device);

 private:
  bool is_due(const ipc::Step& step);

  const FaultSpec spec_;
  std::atomic<bool> fired_{false};
  bool dropping_ = false;
  int slow_steps_left_ = 0;
};

}  // namespace refrain::worker
