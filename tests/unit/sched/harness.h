#pragma once
// Drives a Scheduler against a MockDevice with a given number of steps in flight, and checks of
// every step what must hold for all: the token budget, unique slots, row bounds.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "ipc/protocol/codec.h"
#include "runtime/sched/scheduler.h"
#include "tests/unit/sched/mock_device.h"

namespace refrain::testing {

struct Outcome {
  std::vector<TokenId> output;
  StopCause stop = StopCause::kNone;
  int finishes = 0;
  int32_t cached_tokens = 0;
  std::shared_ptr<const ipc::PromptScores> prompt;
};

class Harness {
 public:
  explicit Harness(SchedulerOptions options, int depth = 2, uint64_t eos_every = 0)
      : options_(options),
        depth_(depth),
        device_(options.block_size, options.groups, 1000, eos_every, false,
                options.draft_model ? options.num_drafts : 0),
        scheduler(std::move(options)) {}

  Status add(RequestId id, std::vector<TokenId> prompt, SequenceParams params) {
    const TokenDigest given = digest_of(prompt);
    return scheduler.add(std::make_unique<Sequence>(id, std::move(prompt), std::move(params)),
                         given);
  }
  Status add(RequestId id, std::vector<TokenId> prompt, int64_t max_tokens) {
    SequenceParams params;
    params.max_tokens = max_tokens;
    return add(id, std::move(prompt), std::move(params));
  }

  // Sends one step if there is one; the device runs it at once, its answer stays in flight.
  bool send() {
    const StepPlan* plan = scheduler.schedule();
    if (plan == nullptr) return false;
    check(plan->step());
    steps.push_back(plan->step());
    answers_.push_back(device_.run(plan->step()));
    return true;
  }
  bool receive() {
    if (answers_.empty()) return false;
    std::vector<TokenEvent> events;
    const Status status = scheduler.update(answers_.front(), events);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    answers_.pop_front();
    for (const TokenEvent& event : events) {
      Outcome& outcome = outcomes[event.id];
      EXPECT_EQ(outcome.finishes, 0) << "token after the end of request " << event.id;
      outcome.output.push_back(event.token);
      if (event.prompt) {
        EXPECT_EQ(outcome.output.size(), 1u);
        outcome.prompt = event.prompt;
      }
      outcome.stop = event.stop;
      outcome.cached_tokens = event.cached_tokens;
      outcome.finishes += event.stop != StopCause::kNone;
    }
    return true;
  }
  void pump() {
    while (static_cast<int>(answers_.size()) < depth_ && send()) {
    }
  }
  // Runs until nothing is left; false when it does not end.
  bool run(int limit = 100000) {
    for (int i = 0; i < limit; ++i) {
      pump();
      if (!receive()) return scheduler.num_unfinished() == 0;
    }
    return false;
  }
  bool all_blocks_free() const {
    const SchedulerStats stats = scheduler.stats();
    return stats.blocks_free == stats.blocks_total;
  }

  std::map<RequestId, Outcome> outcomes;
  std::vector<ipc::Step> steps;

 private:
  void check(const ipc::Step& step) const {
    EXPECT_LE(ipc::num_tokens(step), options_.max_num_batched_tokens);
    EXPECT_LE(ipc::num_rows(step), options_.max_num_seqs);
    std::vector<std::byte> frame;
    ipc::encode_frame(step, {}, frame);
    EXPECT_LE(frame.size(), ipc::kHeaderBytes + options_.max_step_bytes) << "R-23";
    const ipc::Rows& rows = step.runs[0].rows;
    const std::set<SlotId> slots(rows.slot.begin(), rows.slot.end());
    EXPECT_EQ(slots.size(), rows.slot.size()) << "a slot has two rows";
    for (const SlotId slot : slots) EXPECT_TRUE(slot >= 0 && slot < options_.max_num_seqs);
    for (const int32_t count : step.runs[0].rows.num_tokens) EXPECT_GT(count, 0);
  }

  SchedulerOptions options_;
  int depth_;
  MockDevice device_;
  std::deque<ipc::StepResult> answers_;

 public:
  Scheduler scheduler;
};

inline std::vector<TokenId> prompt_of(size_t length, TokenId first = 1) {
  std::vector<TokenId> prompt(length);
  for (size_t i = 0; i < length; ++i) prompt[i] = first + static_cast<TokenId>(i % 50);
  return prompt;
}

inline SchedulerOptions small_options() {
  SchedulerOptions options;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 16;
  options.max_model_len = 64;
  options.block_size = 4;
  options.groups = full_attention(65);
  options.eos_token_ids = {0};
  return options;
}

}  // namespace refrain::testing
