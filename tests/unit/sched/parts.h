#pragma once
// The scheduler's parts as it puts them together, for tests of one of them at a time.

#include <memory>
#include <utility>
#include <vector>

#include "runtime/sched/scheduler.h"
#include "tests/unit/sched/harness.h"

namespace refrain::testing {

struct Parts {
  explicit Parts(SchedulerOptions given = small_options())
      : options(std::move(given)),
        resources(options),
        queues(resources),
        step(options, resources.pools()),
        transfers(options, queues, resources),
        preemption(queues, resources.pools(), transfers),
        admission(options, queues, resources, step),
        decodes(options, queues, step, preemption) {}

  // A request that waits.
  Sequence& add(RequestId id, size_t prompt_len, int32_t priority = 0) {
    SequenceParams params;
    params.priority = priority;
    queues.add(std::make_unique<Sequence>(
        id, prompt_of(prompt_len, static_cast<TokenId>(1 + 100 * id)), std::move(params)));
    return *queues.find(id);
  }
  // One that runs, with blocks for its prompt, of which no token is computed.
  Sequence& add_running(RequestId id, size_t prompt_len, int32_t priority = 0) {
    Sequence& sequence = add(id, prompt_len, priority);
    const int32_t length = sequence.length();
    EXPECT_TRUE(resources.take(sequence, 0, length, length, false));
    queues.run(std::ranges::find(queues.waiting(), &sequence));
    return sequence;
  }
  // One whose first token the device has, and nothing is in flight.
  Sequence& add_decoding(RequestId id, size_t prompt_len) {
    Sequence& sequence = add_running(id, prompt_len);
    sequence.setup_sent = sequence.sampled = true;
    sequence.tokens.push_back(7);
    sequence.num_computed = sequence.num_scheduled = static_cast<int32_t>(prompt_len);
    return sequence;
  }
  void begin(int32_t query_len = 1) {
    step.begin({}, query_len);
    preemption.begin();
    resources.adapters().begin();
  }
  std::vector<RequestId> running() const { return ids(queues.running()); }
  std::vector<RequestId> waiting() const { return ids(queues.waiting()); }
  const ipc::Rows& rows() const { return step.plan().step().runs.front().rows; }
  int64_t num_free() const { return resources.pools().num_free(); }

  const SchedulerOptions options;
  SequenceResources resources;
  SequenceQueues queues;
  StepBuilder step;
  RequestTransfers transfers;
  Preemption preemption;
  PromptAdmission admission;
  DecodePlanner decodes;

 private:
  static std::vector<RequestId> ids(const auto& sequences) {
    std::vector<RequestId> ids;
    for (const Sequence* sequence : sequences) ids.push_back(sequence->id);
    return ids;
  }
};

}  // namespace refrain::testing
