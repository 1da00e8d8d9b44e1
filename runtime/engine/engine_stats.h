#pragma once
// The engine's counters: written on its executor, read from any thread as one consistent snapshot.
// Holds CG-32's table of (unpadded tokens, padded tokens, mode) with counts.

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "runtime/base/clock.h"
#include "runtime/engine/engine.h"

namespace refrain {

// CPU time of the calling thread in microseconds.
double thread_cpu_us();

class StatsBoard {
 public:
  explicit StatsBoard(const Clock& clock) : clock_(clock) {}

  // Changes the counters under the lock.
  void change(const std::function<void(EngineStats&)>& edit);
  // One step done: its graph, how many tokens it gave.
  void step_done(const ipc::StepResult& result, size_t num_new_tokens);
  void audited(const ipc::AuditResult& audit);
  // All ranks answered a step, a canary's included.
  void answered(TimePoint now);
  // A device got on within a step.
  void progressed(TimePoint now);
  void ended(FinishReason reason);
  void add_step_cpu(double microseconds);
  // Captured keys that were never replayed are rows with count 0.
  EngineStats snapshot() const;
  EngineHealth health() const;

 private:
  using Use = std::tuple<ipc::RuntimeMode, int32_t, int32_t>;  // mode, unpadded, padded tokens

  const Clock& clock_;
  mutable std::mutex mutex_;
  EngineStats stats_;
  std::map<Use, uint64_t> uses_;
  TimePoint last_answer_{}, last_progress_{};
};

}  // namespace refrain
