#pragma once
// A step in flight, and its result from the outputs of its turn once it has ended: tokens,
// log-probabilities or pooled vectors, by row. Device thread.

#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "worker/dispatch/dispatcher.h"
#include "worker/runner/grammar_masks.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/slot_table.h"

namespace refrain::worker {

struct StepInFlight {
  StepId step = 0;
  Dispatch dispatch;
  BatchDescriptor key;  // that it runs at (HostedProgram::executed_key)
  uint32_t turn = 0;    // if it has tokens, else no op ran
  bool ran_graph = false;
  bool ends = true;  // false: a later step goes on with its run
  bool decode = false;
  int32_t num_tokens = 0, num_reqs = 0;
  bool with_logprobs = false;
  struct Row {
    SlotId slot = 0;
    bool samples = false;
    int32_t num_logits = 1;
    int32_t num_logprobs = -1;                         // -1: not asked or not sampled
    std::shared_ptr<GrammarMasks::Follower> follower;  // null: none, or it does not sample
  };
  std::vector<Row> rows;
  std::vector<SlotId> slots;             // by row
  std::vector<GrammarMasks::Row> masks;  // that it waits for, until they are asked for
  ipc::AuditResult audit;
  ipc::PromptScores prompt;
  std::unique_ptr<Event> begun;  // of its ops; only with time_steps
  std::unique_ptr<Event> done;
  TimePoint start;
};

class StepResults {
 public:
  // All outlive it.
  StepResults(const Program& program, const InputBuffers& buffers, int rank);

  // What the result of the step will need of its rows, once it has been written.
  static void note_rows(const ipc::Step& step, const SlotTable& slots, const GrammarMasks& grammars,
                        StepInFlight& flight);
  // Of a step that has ended. Throws DeviceError where the device counts other steps.
  ipc::StepResult make(StepInFlight& flight) const;

 private:
  void check_turn(const StepInFlight& flight) const;
  void add_tokens(const StepInFlight& flight, ipc::StepResult& result) const;
  void add_pooled(const StepInFlight& flight, ipc::StepResult& result) const;
  int32_t tokens_of(const StepInFlight& flight, size_t row) const;
  void add_logprobs(const StepInFlight& flight, ipc::StepResult& result) const;

  const InputBuffers& buffers_;
  const int rank_;
  size_t pooled_cols_ = 0;  // 0: it samples
};

}  // namespace refrain::worker
