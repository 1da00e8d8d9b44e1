#pragma once
// The device of a simulated worker: does what worker/worker/device_thread does, on the worker's own
// executor, taking virtual time; it computes on a MockDevice. The ranks of a group meet in each of
// its steps. Single faults are staged on it.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "tests/sim/process_executor.h"
#include "tests/unit/sched/mock_device.h"
#include "worker/worker/device_thread.h"

namespace refrain::sim {

// What the mock model of all ranks is.
struct SimModel {
  uint64_t vocab = 500;
  uint64_t eos_every = 0;
};

// Log-probability that the mock device gives a token.
inline float logprob_of(TokenId token) { return -0.01f * static_cast<float>(token + 1); }

// A request that ends the workers whenever it is in a step that computes a token from `after`
// beyond its prompt on. Its seed says so, which reaches every device.
struct Poison {
  static constexpr uint64_t kFirstSeed = uint64_t{1} << 40;
  enum class Kind : uint64_t { kDeviceError, kKilled, kSpins };
  Kind kind = Kind::kDeviceError;
  int32_t rank = 0;  // modulo the ranks
  int32_t after = 0;

  uint64_t seed() const {
    return kFirstSeed + static_cast<uint64_t>(kind) * 64 + static_cast<uint64_t>(rank) * 16 +
           static_cast<uint64_t>(after);
  }
  static std::optional<Poison> of(uint64_t seed);
};

// One thing that goes wrong with the next step of a rank.
enum class StepFault : uint8_t {
  kNone,
  kSpin,  // never ends
  kDeviceError,
  kOtherKey,
  kTokenTooLarge,
  kRowMissing
};

class SimDevice;

struct SimDeviceSettings {
  int32_t rank = 0;
  int64_t pid = 0;
  std::function<SimDevice*(int64_t pid)> device_of;  // of a process that lives; else null
  int64_t num_kv_blocks = 64;
  int32_t replicas = 1;  // that step together
  SimModel model;
  std::function<uint64_t(uint64_t bound)> random;
  std::function<void(const std::string&)> note;
  std::function<void(int32_t rank, Epoch, const ipc::Step&)> on_step;  // before it runs
  // Calls when all ranks of the group, or of all replicas, have come to its `ordinal`-th step: a
  // device's collectives.
  std::function<void(const SimDevice& device, uint64_t ordinal, const ipc::Step& step,
                     std::function<void()> go)>
      meet;
  std::function<void(worker::DeviceReport)> report;
  std::function<void(int32_t rank, Epoch, const Poison&)> on_poison;  // it strikes now
  std::function<void(int32_t rank, Epoch)> on_hang;                   // in its start
};

class SimDevice final : public worker::WorkerDevice {
 public:
  SimDevice(SimDeviceSettings settings, std::shared_ptr<Executor> executor);

  void start();  // begins to beat
  void start_group(Epoch epoch, worker::RunnerOptions options) override;
  void adopt(Epoch epoch) override { post(Adopt{epoch, std::nullopt}); }
  void recapture(Epoch epoch, ipc::WorkerConfig config) override {
    post(Adopt{epoch, std::move(config)});
  }
  void peers(ipc::Peers /*message*/) override {}
  void init_cache(const ipc::InitCache& message) override;
  void step(ipc::Step message) override;
  void grammar(ipc::Grammar message) override;
  void load_adapter(ipc::LoadAdapter message) override {
    report(ipc::AdapterLoaded{message.id, ""});
  }
  void unload_adapter(const ipc::UnloadAdapter& /*message*/) override {}
  void transfer(worker::TransferThread::Command command) override;
  ipc::Position position() const override { return {last_step_, launches_, true}; }

  void fault_next_step(StepFault fault) { fault_ = fault; }
  void hang_in_start(bool capturing) { hang_ = {true, capturing}; }
  void slow_down(Duration by) { slower_ = by; }  // every step takes that much longer

  Epoch epoch() const { return epoch_; }
  const std::string& group() const { return group_; }
  bool kept() const { return loaded_.kept; }  // the group was adopted, not loaded

 private:
  struct StartGroup {
    Epoch epoch;
    std::string group;
    ipc::WorkerConfig config;
  };
  struct Adopt {
    Epoch epoch;
    std::optional<ipc::WorkerConfig> config;  // of another role
  };
  using Command = std::variant<StartGroup, Adopt, ipc::InitCache, ipc::Step>;

  void post(Command command);
  void work();
  Duration duration_of(const Command& command);
  void begin_epoch(Epoch epoch);
  void finish(Command command);
  void done(Command command);
  void begin_load(const StartGroup& start);
  void keep(Adopt adopted);
  void prepare(const ipc::InitCache& message);
  void run(const ipc::Step& step);
  bool spoil(ipc::StepResult& result);
  void pull(const ipc::PullBlocks& order);
  void end_pull(const ipc::PullBlocks& order, bool fails);
  std::optional<Poison> poison_in(const ipc::Step& step);
  void report(ipc::Message message, std::optional<int> exit_code = std::nullopt);

  const SimDeviceSettings settings_;
  std::shared_ptr<Executor> executor_;
  std::deque<Command> commands_;
  bool busy_ = false;
  bool ready_ = false;
  Epoch epoch_ = 0;
  std::string group_;
  uint64_t steps_run_ = 0;  // of the group
  ipc::WorkerConfig config_;
  ipc::Loaded loaded_;
  std::unique_ptr<testing::MockDevice> device_;  // from the first InitCache of a group on
  StepId last_step_ = 0;
  uint64_t launches_ = 0;  // since then: one, at whose end the ranks meet
  uint64_t beats_ = 0;
  struct Poisoned {
    Poison poison;
    int32_t prompt_len = 0;
  };
  std::map<SlotId, Poisoned> poisoned_;  // slots
  struct Hang {
    bool on = false, capturing = false;
  } hang_;
  StepFault fault_ = StepFault::kNone;
  Duration slower_{};
  std::map<int32_t, ipc::KvPeers> peers_;  // of other groups
  std::set<TransferId> stuck_;             // pulls that get nowhere until they are cancelled
  std::set<TransferId> early_;             // those whose blocks a step of the others still writes
};

}  // namespace refrain::sim
