#pragma once
// A scheduler for prompts and one for answers, each with a mock device, and the blocks that move
// between these. When a pull writes and when it is reported a test says.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "tests/unit/sched/harness.h"

namespace refrain::testing {

class Pair {
 public:
  explicit Pair(int64_t prefill_blocks = 65, int64_t decode_blocks = 65, int32_t drafts = 0,
                bool early = false)
      : Pair(options_of(prefill_blocks, drafts, early), options_of(decode_blocks, drafts)) {}
  Pair(const SchedulerOptions& prefill_options, const SchedulerOptions& decode_options)
      : prefill(prefill_options), decode(decode_options) {}

  static SchedulerOptions options_of(int64_t blocks, int32_t drafts, bool early = false) {
    SchedulerOptions options = small_options();
    options.publish_layers = early;
    options.groups = full_attention(blocks);
    options.num_drafts = drafts;
    options.transfer_timeout = std::chrono::seconds(4);
    return options;
  }

  struct Side {
    explicit Side(const SchedulerOptions& options)
        : device(options.block_size, options.groups), scheduler(options) {}
    MockDevice device;
    std::deque<ipc::StepResult> answers;
    Scheduler scheduler;
  };

  void add(RequestId id, const std::vector<TokenId>& prompt, int64_t max_tokens,
           AdapterId adapter = 0) {
    SequenceParams params;
    params.max_tokens = max_tokens;
    params.adapter = adapters[id] = adapter;
    auto sequence = std::make_unique<Sequence>(id, prompt, std::move(params));
    sequence->hands_over = max_tokens > 1;
    given[id] = digest_of(prompt);
    prompts[id] = prompt;
    limits[id] = max_tokens;
    ASSERT_TRUE(prefill.scheduler.add(std::move(sequence), given[id]).has_value());
  }

  // One round of everything that needs no pull.
  bool turn(Side& side) {
    const StepPlan* plan = side.answers.size() < 2 ? side.scheduler.schedule(now) : nullptr;
    if (plan != nullptr) side.answers.push_back(side.device.run(plan->step()));
    take_promised();
    take_orders();
    if (plan != nullptr) return true;
    if (side.answers.empty()) return false;
    std::vector<TokenEvent> events;
    const Status status = side.scheduler.update(side.answers.front(), events);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    side.answers.pop_front();
    for (const TokenEvent& event : events) {
      given[event.id].add(event.token);
      outputs[event.id].push_back(event.token);
      finished[event.id] += event.stop != StopCause::kNone;
    }
    settle();
    return true;
  }
  void run() {
    while (turn(prefill) || turn(decode)) {
    }
  }
  // What the decode side may begin with early, in pairs that publish layers.
  void take_promised() {
    for (const RequestId id : prefill.scheduler.take_withdrawn()) decode.scheduler.forget(id);
    for (PromisedRequest& request : prefill.scheduler.take_promised())
      promised += decode.scheduler.expect(std::move(request), now);
  }
  void settle() {
    take_promised();
    for (auto& sequence : prefill.scheduler.take_handed_over()) to(decode, std::move(sequence));
    for (auto& sequence : decode.scheduler.take_failed()) {
      ++failed;
      const bool again = sequence->failed_transfers < 3;
      sequence->hands_over = again;
      to(again ? prefill : decode, std::move(sequence));
    }
    take_orders();
  }
  void to(Side& side, std::unique_ptr<Sequence> sequence) {
    const TokenDigest digest = given[sequence->id];
    const Status added = side.scheduler.add(std::move(sequence), digest);
    EXPECT_TRUE(added.has_value()) << (added ? "" : added.error().message);
  }
  void take_orders() {
    for (ipc::Message& order : decode.scheduler.take_orders()) {
      if (auto* pull = std::get_if<ipc::PullBlocks>(&order)) pulls.push_back(std::move(*pull));
      if (auto* cancel = std::get_if<ipc::CancelPull>(&order)) cancels.push_back(cancel->id);
    }
  }
  void copy(const ipc::PullBlocks& pull) { decode.device.pull(prefill.device, pull.blocks); }
  void report(TransferId id, bool ended, std::string error = "", int64_t bytes = 1) {
    decode.scheduler.pulled(0, {id, bytes, ended, std::move(error)}, now);
    settle();
  }
  void finish_pulls() {
    for (const ipc::PullBlocks& pull : std::exchange(pulls, {})) {
      copy(pull);
      report(pull.id, true);
    }
  }
  void check() {
    prefill.scheduler.check_transfers(now);
    decode.scheduler.check_transfers(now);
    settle();
  }
  // Runs to the end with every pull done at once.
  void complete() {
    for (int i = 0; i < 1000; ++i) {
      run();
      if (pulls.empty()) break;
      finish_pulls();
    }
  }
  void expect_answers() {
    for (const auto& [id, prompt] : prompts) {
      EXPECT_EQ(finished[id], 1) << "request " << id;
      EXPECT_EQ(outputs[id], solo_run(prompt, static_cast<size_t>(limits[id]), 64, 1000, 0, {},
                                      false, adapters[id]))
          << "request " << id;
    }
  }
  void expect_all_free() {
    for (const Side* side : {&prefill, &decode}) {
      const SchedulerStats stats = side->scheduler.stats();
      EXPECT_EQ(stats.blocks_free, stats.blocks_total);
      EXPECT_EQ(stats.leases, 0u);
      EXPECT_EQ(stats.transfers.running + stats.transfers.quarantined, 0u);
      EXPECT_EQ(side->scheduler.num_unfinished(), 0u);
      EXPECT_FALSE(side->scheduler.has_transfers());
    }
  }

  TimePoint now{};
  Side prefill, decode;
  std::map<RequestId, TokenDigest> given;
  std::map<RequestId, std::vector<TokenId>> prompts, outputs;
  std::map<RequestId, int64_t> limits;
  std::map<RequestId, AdapterId> adapters;
  std::map<RequestId, int> finished;
  std::vector<ipc::PullBlocks> pulls;
  std::vector<TransferId> cancels;
  int failed = 0, promised = 0;
};

}  // namespace refrain::testing
