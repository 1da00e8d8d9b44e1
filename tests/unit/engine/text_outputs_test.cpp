#include "runtime/engine/text_outputs.h"

#include <gtest/gtest.h>

#include "runtime/actor/manual_executor.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

class TextOutputsTest : public ::testing::Test {
 protected:
  void open(size_t thread, RequestId id) {
    side.open(thread, id, 3, {}, [this, id](RequestOutput output) {
      ++outputs[id];
      ended[id] = output.finish;
    });
  }
  void step(std::initializer_list<std::pair<size_t, RequestId>> rows) {
    for (const auto& [thread, id] : rows) side.add(thread, {id, {64, 0, {}}, StopCause::kNone, 0});
    side.hand_over();
  }

  ManualScheduler scheduler;
  std::vector<std::shared_ptr<Executor>> executors = {scheduler.make_executor("output-0"),
                                                      scheduler.make_executor("output-1")};
  int caught_up = 0;
  std::map<RequestId, int> outputs;
  std::map<RequestId, FinishReason> ended;
  TextOutputs side{executors,
                   std::make_shared<const text::Tokenizer>(
                       *text::Tokenizer::load("tests/fixtures/models/qwen2")),
                   [](RequestId) {}, [this] { ++caught_up; }};
};

TEST_F(TextOutputsTest, AStepIsOneHandOverToEachThreadThatHasRequests) {
  for (RequestId id = 1; id <= 20; ++id) open(id <= 10 ? 0 : 1, id);
  scheduler.run_until_idle();
  for (RequestId id = 1; id <= 20; ++id) side.add(id <= 10 ? 0 : 1, {id, {64, 0, {}}});
  side.hand_over();
  EXPECT_EQ(scheduler.run_until_idle(), 2u);
  EXPECT_EQ(outputs.size(), 20u);
  step({{0, 1}, {2, 2}});  // modulo the number of threads
  EXPECT_EQ(scheduler.run_until_idle(), 1u);
  side.hand_over();
  EXPECT_EQ(scheduler.run_until_idle(), 0u);
}

TEST_F(TextOutputsTest, AnEndComesBehindTheTokensBeforeIt) {
  open(0, 1);
  step({{0, 1}});
  side.end(0, 1, FinishReason::kAbort, std::nullopt);
  scheduler.run_until_idle();
  EXPECT_EQ(outputs[1], 2);
  EXPECT_EQ(ended[1], FinishReason::kAbort);
}

// The engine stops planning steps whose tokens nobody takes, and hears once when it may go on.
TEST_F(TextOutputsTest, TheQueueIsBoundedAndTellsOnceWhenThereIsRoom) {
  open(0, 1);
  scheduler.run_until_idle();
  int steps = 0;
  while (!side.full()) {
    step({{0, 1}});
    ASSERT_LT(++steps, 1000);
  }
  EXPECT_TRUE(side.full());
  EXPECT_EQ(caught_up, 0);
  scheduler.run_until_idle();
  EXPECT_EQ(caught_up, 1);
  EXPECT_EQ(outputs[1], steps);
  EXPECT_FALSE(side.full());
  step({{0, 1}});
  scheduler.run_until_idle();
  EXPECT_EQ(caught_up, 1);  // nobody waited
}

}  // namespace
}  // namespace refrain
