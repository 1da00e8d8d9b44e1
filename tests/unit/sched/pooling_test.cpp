// Requests of a model that pools: one vector each, which is no token of text, for prompts as long
// as the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::prompt_of;
using testing::small_options;

SchedulerOptions pooling_options() {
  SchedulerOptions options = small_options();
  options.pooled_cols = 2;
  ++options.max_model_len;  // as the engine has it: 64 tokens of prompt
  return options;
}

Status add(Scheduler& scheduler, RequestId id, size_t length) {
  SequenceParams params;
  params.max_tokens = 1;
  params.ignore_eos = true;
  std::vector<TokenId> prompt = prompt_of(length, static_cast<TokenId>(60 * id));
  const TokenDigest given = digest_of(prompt);
  return scheduler.add(std::make_unique<Sequence>(id, std::move(prompt), std::move(params)), given);
}

// What a worker says to the step: the vector of a row that ends its prompt is (slot, its length).
ipc::StepResult answer(const ipc::Step& step) {
  ipc::StepResult result;
  result.step = step.step;
  result.token_offsets = {0};
  const ipc::Rows& rows = step.runs.front().rows;
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    if ((rows.flags[row] & ipc::kSamples) != 0) {
      result.tokens.push_back(0);
      result.pooled.push_back(static_cast<float>(rows.slot[row]));
      result.pooled.push_back(static_cast<float>(rows.computed[row] + rows.num_tokens[row]));
    }
    result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
  }
  return result;
}

TEST(SchedulerPooling, APromptInChunksEndsWithItsVectorAndCountsNoToken) {
  Scheduler scheduler(pooling_options());
  ASSERT_TRUE(add(scheduler, 1, 64));
  ASSERT_TRUE(add(scheduler, 2, 5));
  std::map<RequestId, std::vector<float>> vectors;
  while (const StepPlan* plan = scheduler.schedule()) {
    std::vector<TokenEvent> events;
    ASSERT_TRUE(scheduler.update(answer(plan->step()), events));
    for (const TokenEvent& event : events) {
      EXPECT_EQ(event.stop, StopCause::kMaxTokens);
      ASSERT_NE(event.pooled, nullptr);
      EXPECT_TRUE(vectors.emplace(event.id, *event.pooled).second);
    }
  }
  EXPECT_EQ(vectors.size(), 2u);
  EXPECT_EQ(vectors[1].at(1), 64.0f);
  EXPECT_EQ(vectors[2].at(1), 5.0f);
  EXPECT_EQ(scheduler.num_unfinished(), 0u);
  EXPECT_EQ(scheduler.stats().prompt_tokens, 69u);
  EXPECT_EQ(scheduler.stats().generated_tokens, 0u);
}

TEST(SchedulerPooling, R22AVectorThatIsNoNumbersEndsItsRequestAlone) {
  Scheduler scheduler(pooling_options());
  ASSERT_TRUE(add(scheduler, 1, 4));
  ASSERT_TRUE(add(scheduler, 2, 5));
  ipc::StepResult result = answer(scheduler.schedule()->step());
  ASSERT_EQ(result.tokens.size(), 2u);
  result.tokens.front() = ipc::kNoFiniteLogit;
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler.update(result, events));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].stop, StopCause::kNoLogit);
  EXPECT_EQ(events[0].pooled, nullptr);
  EXPECT_THAT(*events[1].pooled, ElementsAre(result.pooled[2], 5.0f));
}

TEST(SchedulerPooling, AnAnswerWithoutAVectorForEachPromptIsRefused) {
  Scheduler scheduler(pooling_options());
  ASSERT_TRUE(add(scheduler, 1, 4));
  ipc::StepResult result = answer(scheduler.schedule()->step());
  result.pooled.pop_back();
  std::vector<TokenEvent> events;
  const Status status = scheduler.update(result, events);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("1 pooled numbers instead of 2"));
}

}  // namespace
}  // namespace refrain
