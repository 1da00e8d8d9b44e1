#include "runtime/engine/chunk_pace.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

class ChunkPaceTest : public ::testing::Test {
 protected:
  // One step of a prompt chunk and some decodes that takes so many milliseconds.
  void run(int32_t chunk, int32_t decodes, int milliseconds) {
    send(chunk, decodes);
    now += std::chrono::milliseconds(milliseconds);
    pace.answered(now);
  }
  void send(int32_t chunk, int32_t decodes) {
    ipc::Step step;
    step.row_num_tokens.assign(static_cast<size_t>(decodes), 1);
    if (chunk > 0) step.row_num_tokens.push_back(chunk);
    step.token_ids.resize(static_cast<size_t>(chunk + decodes));
    pace.sent(step, now);
  }
  TimePoint now{std::chrono::seconds(100)};
  ChunkPace pace{2048};
};

TEST_F(ChunkPaceTest, TheFirstStepIsShortAndAFastDeviceIsNotHeldBack) {
  EXPECT_EQ(pace.prompt_tokens(), ChunkPace::kUnknownTokens);
  run(256, 0, 12);
  EXPECT_EQ(pace.prompt_tokens(), 2048);
  EXPECT_EQ(ChunkPace(64).prompt_tokens(), 64);
}

// A host device of 200 tokens a second, and one that becomes slower with the context.
TEST_F(ChunkPaceTest, NoStepOfASlowDeviceTakesMuchLongerThanASecond) {
  run(256, 0, 1280);
  EXPECT_EQ(pace.prompt_tokens(), 192);
  for (int i = 0; i < 20; ++i) run(pace.prompt_tokens(), 8, pace.prompt_tokens() * 20);
  EXPECT_LE(pace.prompt_tokens(), 64);
  for (int i = 0; i < 20; ++i) run(32, 0, 60'000);
  EXPECT_EQ(pace.prompt_tokens(), ChunkPace::kLeastTokens) << "a prompt always gets on";
}

TEST_F(ChunkPaceTest, AStepThatWaitedForAnotherBeginsWhenThatIsDone) {
  send(256, 0);
  send(256, 0);
  for (int i = 0; i < 2; ++i) {
    now += std::chrono::milliseconds(512);
    pace.answered(now);
  }
  EXPECT_EQ(pace.prompt_tokens(), 480);
}

TEST_F(ChunkPaceTest, DecodesAloneAndLostStepsSayNothing) {
  run(0, 64, 5000);
  EXPECT_EQ(pace.prompt_tokens(), ChunkPace::kUnknownTokens);
  send(256, 0);
  pace.restart();
  run(256, 0, 100);
  EXPECT_EQ(pace.prompt_tokens(), 2048);
}

}  // namespace
}  // namespace refrain
