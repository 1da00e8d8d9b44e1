#pragma once
// The tensor-parallel workers as one unit: hello, start, ready, steps, heartbeats, and the
// fence when a rank is lost: the others are shut down and a new set of workers is awaited under a
// new epoch. Lives on the engine's executor, on which its endpoint calls as well; handlers are
// called there, never from inside a call of the engine's.

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/messages.h"
#include "ipc/transport/endpoint.h"
#include "runtime/actor/executor.h"
#include "runtime/base/process_identity.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/handshake.h"
#include "runtime/engine/rank_positions.h"
#include "runtime/engine/start_progress.h"
#include "runtime/engine/step_gather.h"

namespace refrain {

// Calls the function once when the local process ends; false: it cannot be watched.
using ProcessWatch =
    std::function<bool(const ProcessIdentity& process, std::function<void()> gone)>;
// Ends a local process at once (SIGKILL); only for one that is watched and not gone.
using ProcessKill = std::function<void(int64_t pid)>;

struct WorkerGroupOptions {
  GroupIdentity identity;
  ipc::WorkerConfig worker;
  ProcessIdentity process;   // this one: it and workers of its realm watch each other
  std::string token_prefix;  // of group tokens; unique on this machine
  Epoch first_epoch = 1;
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration heartbeat_timeout = std::chrono::seconds(2);
  Duration start_timeout = std::chrono::seconds(600);
};

struct WorkerGroupHandlers {
  std::function<void(GroupState, const std::string& detail)> on_state;
  std::function<void(const StartProgress&)> on_progress;
  std::function<void(int64_t num_kv_blocks)> on_ready;       // before on_state(kReady)
  std::function<void(ipc::StepResult)> on_step;              // rank 0's, when all ranks agree
  std::function<void()> on_device_progress;                  // a device got on within a step
  std::function<void(GroupLoss)> on_loss;                    // first of all
  std::function<void(const Error&, bool for_good)> on_lost;  // before on_state
};

class WorkerGroup : public std::enable_shared_from_this<WorkerGroup> {
 public:
  WorkerGroup(WorkerGroupOptions options, std::unique_ptr<ipc::Endpoint> endpoint,
              std::shared_ptr<Executor> executor, ProcessWatch watch, ProcessKill kill,
              WorkerGroupHandlers handlers);

  void start();
  void send_step(const ipc::Message& step);  // only while ready
  // A rank's answer is wrong ("answers"), or it takes no messages ("connection"): the group is
  // lost.
  void fence(std::string detector, int32_t rank, std::string reason);
  // A canary got no finite logit. The group is lost, and the next one checks its weights; of
  // that one the same is the end for good.
  void distrust();
  void trust() { distrusted_ = false; }  // a canary was answered
  bool distrusted() const { return distrusted_; }
  void stop(const std::string& reason);

  GroupState state() const { return state_; }
  const std::string& detail() const { return detail_; }
  Epoch epoch() const { return epoch_; }
  uint64_t restarts() const { return restarts_; }
  uint64_t frames_rejected() const { return frames_rejected_; }
  std::vector<ipc::Ready> ready() const;
  std::vector<std::string> devices() const;  // as the workers name them

 private:
  static constexpr size_t kBadFrames = 3;  // of one peer within kBadFrameWindow fence its group
  static constexpr Duration kBadFrameWindow = std::chrono::seconds(10);
  static constexpr Duration kLastWords = std::chrono::milliseconds(20);  // after a process's end
  static constexpr Duration kGrace = std::chrono::milliseconds(500);     // to go after the fence
  static constexpr Duration kStall = std::chrono::seconds(1);        // of this process's own loop
  static constexpr Duration kStartStall = std::chrono::seconds(60);  // or a tenth of start_timeout

  struct Rank {
    explicit Rank(Epoch epoch) : gate(epoch) {}
    ipc::PeerId peer;
    ipc::Hello hello;
    ipc::FrameGate gate;
    uint64_t sent = 0;   // frames, in this epoch
    bool spoke = false;  // since it was welcomed
    // Its process has ended; its last words may still be on their way. Null: not watched.
    std::shared_ptr<bool> gone;
    StepId last_step = 0;  // as its device loop last said
    std::optional<ipc::Loaded> loaded;
    std::optional<ipc::Ready> ready;
    TimePoint last_heard;  // of its device loop
    std::deque<TimePoint> bad_frames;
  };

  // worker_group_frames.cpp: what peers say
  void on_frame(const ipc::PeerId& from, std::span<const std::byte> frame);
  void on_bad_frame(const ipc::PeerId& from, const std::string& why);
  void on_hello(const ipc::PeerId& from, const ipc::Hello& hello);
  void outgrow(Epoch epoch);
  std::optional<std::string> mixed_group(const ipc::Hello& hello) const;
  void welcome(const ipc::PeerId& from, const ipc::Hello& hello);
  Status beat(Rank& rank);
  void refuse(const ipc::PeerId& peer, std::string reason);
  void on_message(int32_t rank, ipc::Message message);
  void on_loaded(int32_t rank, const ipc::Loaded& loaded);
  void on_ready(int32_t rank, ipc::Ready ready);
  void on_step_result(int32_t rank, ipc::StepResult result);
  void on_failed(int32_t rank, const ipc::Failed& failed);
  void watch(Rank& rank);
  void on_process_end(int32_t rank);

  // worker_group.cpp: life
  bool active() const;                                            // waiting, starting or ready
  int32_t rank_of(const ipc::PeerId& peer) const;                 // -1: none
  std::string name_of(int32_t rank) const;                        // "rank 1 (pid 4711 on host)"
  std::string names_of(const std::vector<int32_t>& ranks) const;  // joined by commas
  void beat_or_fence(Rank& rank);
  void fence_deaf(const Rank& rank, const Error& error);  // a message could not be sent
  void broadcast(const ipc::Message& message);
  // `detector` and `ranks`: GroupLoss.
  void lose(std::string detector, std::vector<int32_t> ranks, std::string reason,
            bool for_good = false);
  void dismiss_all(const std::string& reason);
  void kill_if_it_stays(const Rank& rank);
  void set_state(GroupState state, std::string detail);
  void arm_timer(Duration delay);
  void on_timer();
  bool stood_still(TimePoint now);
  Duration until_next_sweep(TimePoint now) const;
  bool check_start_progress(TimePoint now);
  void check_start_deadline(TimePoint now);
  TimePoint last_sign(int32_t rank) const;
  std::optional<TimePoint> stalled() const;
  void check_ranks(TimePoint now);
  void check_step(TimePoint now);

  const WorkerGroupOptions options_;
  std::unique_ptr<ipc::Endpoint> endpoint_;
  std::shared_ptr<Executor> executor_;
  ProcessWatch watch_;
  ProcessKill kill_;
  WorkerGroupHandlers handlers_;

  GroupState state_ = GroupState::kWaiting;
  std::string detail_;
  Epoch epoch_;
  uint64_t restarts_ = 0;
  uint64_t frames_rejected_ = 0;
  bool distrusted_ = false;
  std::vector<std::optional<Rank>> ranks_;
  StartBoard board_;
  StepGather gather_;
  RankPositions positions_;
  int64_t num_kv_blocks_ = 0;
  TimePoint waiting_since_;
  TimePoint timer_due_;
  uint64_t heartbeats_ = 0;
  TimerId timer_ = 0;
  std::vector<std::byte> frame_;
};

}  // namespace refrain
