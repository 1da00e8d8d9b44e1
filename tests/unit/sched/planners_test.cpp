// Who gets a row of a step: the planners of decodes and of parts, and what lets a prompt begin.
#include <gtest/gtest.h>

#include "runtime/sched/split_prefill.h"
#include "runtime/sched/step_results.h"
#include "tests/unit/sched/parts.h"

namespace refrain {
namespace {

using testing::Parts;
using testing::small_options;

TEST(DecodePlanner, GivesARowToEachWhosePromptIsComputed) {
  Parts parts;
  parts.add_decoding(1, 6);
  parts.add_running(2, 6);  // its prompt is not
  Sequence& ends = parts.add_decoding(3, 6);
  ends.params.max_tokens = 1;  // it has it
  EXPECT_TRUE(parts.decodes.any());
  parts.begin();
  EXPECT_TRUE(parts.decodes.plan());  // a prompt is left
  EXPECT_EQ(parts.rows().slot, (std::vector<SlotId>{0}));
}

TEST(DecodePlanner, DraftsAreLeftOutWhereTheStepHasNoRoomForThem) {
  SchedulerOptions options = small_options();  // 16 tokens a step
  options.num_drafts = 7;
  Parts parts(options);
  for (RequestId id = 1; id <= 2; ++id) parts.add_decoding(id, 4);
  EXPECT_EQ(parts.decodes.query_len(), 8);
  parts.add_decoding(3, 4);
  EXPECT_EQ(parts.decodes.query_len(), 1);
}

TEST(DecodePlanner, NoMoreThanTwoRowsThatVerifyAreInFlight) {
  SchedulerOptions options = small_options();
  options.num_drafts = 2;
  Parts parts(options);
  Sequence& sequence = parts.add_decoding(1, 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(parts.decodes.any(), i < 2);
    parts.begin(3);
    parts.decodes.plan();
    EXPECT_EQ(parts.rows().slot.size(), i < 2 ? 1u : 0u);
    if (i < 2) parts.step.finish({});
  }
  EXPECT_EQ(sequence.in_flight, 2);
}

TEST(PromptAdmission, GivesAPromptItsBlocksAndTheRowThatFits) {
  Parts parts;
  Sequence& sequence = parts.add(1, 10);
  parts.begin();
  EXPECT_EQ(parts.admission.admit(sequence, 6), 6);
  EXPECT_EQ(sequence.tokens_held, 12);  // of whole blocks
  EXPECT_EQ(parts.admission.prompt_tokens(), 10u);
  EXPECT_EQ(parts.admission.cached_prompt_tokens(), 0u);
}

TEST(PromptAdmission, APromptIsLongWhenAStepCannotHaveIt) {
  Parts parts;
  const Sequence& sequence = parts.add(1, 12);
  EXPECT_FALSE(parts.admission.is_long(sequence));
  parts.step.limit_chunks({11});
  EXPECT_TRUE(parts.admission.is_long(sequence));
}

// Each look asks for one block more; a short one behind them is found all the same.
TEST(PrefillPlanner, LooksAtFewOfTheLongPromptsThatWaitInEachStep) {
  Parts parts;
  PrefillPlanner prompts(parts.options, parts.queues, parts.resources, parts.step, parts.preemption,
                         parts.admission, parts.transfers);
  parts.add_running(1, 60).long_prompt = true;
  for (RequestId id = 2; id <= 101; ++id) parts.add(id, 40);
  const auto looks = [&] {
    const uint64_t before = parts.resources.pools().lookups();
    parts.begin();
    parts.step.begin_chunks();
    prompts.plan(true);
    parts.step.finish({});
    return parts.resources.pools().lookups() - before;
  };
  EXPECT_EQ(looks(), 100u) << "whether they are long is not known";
  EXPECT_EQ(looks(), uint64_t{PrefillPlanner::kLooksAtLong});
  parts.add(102, 4);
  looks();
  EXPECT_EQ(parts.running(), (std::vector<RequestId>{1, 102}));
}

TEST(PromptAdmission, AnAdapterThatNoRankHasYetKeepsNobodyFromAPlace) {
  SchedulerOptions options = small_options();
  options.max_loras = 1;
  Parts parts(options);
  Sequence& waits = parts.add(1, 4);
  waits.params.adapter = 5;
  Sequence& loaded = parts.add(2, 4);
  loaded.params.adapter = 6;
  parts.resources.adapters().loaded(6);
  parts.begin();
  EXPECT_FALSE(parts.admission.adapter_may_enter(waits));
  EXPECT_TRUE(parts.admission.adapter_may_enter(loaded));
  EXPECT_TRUE(parts.admission.adapter_may_enter(parts.add(3, 4)));
}

TEST(SplitPrefill, PartsOfARowTakeTurnsWithDecodes_CG39) {
  SchedulerOptions options = small_options();
  options.split_prefill = 3;
  options.split_prefill_tokens = 4;
  Parts parts(options);
  SplitPrefill split(parts.options, parts.queues, parts.resources, parts.step, parts.admission);
  Sequence& prompt = parts.add(1, 12);
  parts.begin();
  EXPECT_FALSE(split.plan(/*others_decode=*/false));  // nobody would wait for it
  for (int part = 0; part < 3; ++part) {
    parts.begin();
    ASSERT_TRUE(split.plan(true)) << part;
    EXPECT_EQ(parts.step.plan().step().runs[0].part, part);
    EXPECT_EQ(split.under_way(), part < 2);
    EXPECT_EQ(prompt.num_scheduled, part < 2 ? 0 : 12);
    split.planned(true);
    parts.step.finish({});
    parts.begin();
    EXPECT_FALSE(split.plan(true));  // the turn of those who decode
    split.planned(false);
  }
}

struct Answered : Parts {
  Answered()
      : transfers(options, queues, resources),
        results(options, queues, resources.pools(), transfers) {}
  ipc::StepResult answer(StepId step, std::vector<TokenId> tokens) const {
    ipc::StepResult result;
    result.step = step;
    result.tokens = std::move(tokens);
    result.token_offsets = {0, static_cast<int32_t>(result.tokens.size())};
    return result;
  }
  RequestTransfers transfers;
  StepResults results;
};

TEST(StepResults, AnAnswerHasTheStepTheRowsAndTheTokensThatWereAskedFor) {
  Answered parts;
  Sequence& sequence = parts.add_decoding(1, 4);
  ASSERT_TRUE(parts.resources.pools().ensure(sequence, 8));
  EXPECT_FALSE(parts.results.check(parts.answer(1, {5})));  // none is in flight
  parts.begin();
  parts.step.add_decode(sequence);
  parts.results.sent(parts.step.finish({}));
  EXPECT_FALSE(parts.results.check(parts.answer(2, {5})));
  EXPECT_FALSE(parts.results.check(parts.answer(1, {})));
  EXPECT_FALSE(parts.results.check(parts.answer(1, {5, 6})));
  EXPECT_FALSE(parts.results.check(parts.answer(1, {-5})));
  EXPECT_TRUE(parts.results.check(parts.answer(1, {5})));
}

TEST(StepResults, ATokenThatEndsARequestFreesWhatItHeld) {
  Answered parts;
  const int64_t all_free = parts.num_free();
  Sequence& sequence = parts.add_decoding(1, 4);
  ASSERT_TRUE(parts.resources.pools().ensure(sequence, 8));
  parts.begin();
  parts.step.add_decode(sequence);
  parts.results.sent(parts.step.finish({}));
  std::vector<TokenEvent> events;
  const PlannedStep done = parts.results.take(parts.answer(1, {0}), {}, events);  // 0 is eos
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].stop, StopCause::kEos);
  EXPECT_EQ(done.step, 1u);
  EXPECT_EQ(parts.results.in_flight(), 0u);
  EXPECT_EQ(parts.results.generated_tokens(), 1u);
  EXPECT_EQ(parts.queues.find(1), nullptr);
  EXPECT_EQ(parts.num_free(), all_free);
}

}  // namespace
}  // namespace refrain
