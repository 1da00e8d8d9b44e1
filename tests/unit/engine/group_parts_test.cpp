// The pure parts of the worker group: handshake, comparison of ranks, deadlines, progress.
#include <gtest/gtest.h>

#include "runtime/engine/handshake.h"
#include "runtime/engine/start_progress.h"
#include "runtime/engine/step_gather.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

ipc::Hello good_hello() {
  ipc::Hello hello;
  hello.build_id = "b1";
  hello.model_digest = "m1";
  hello.rank = 1;
  hello.tensor_parallel_size = 2;
  return hello;
}

TEST(Handshake, RefusesWhatDiffersAndSaysWhat) {
  const GroupIdentity identity{2, "b1", "m1"};
  EXPECT_FALSE(refusal(good_hello(), identity).has_value());
  const auto reason = [&](auto change) {
    ipc::Hello hello = good_hello();
    change(hello);
    return refusal(hello, identity).value_or("accepted");
  };
  EXPECT_NE(reason([](auto& h) { h.build_id = "b2"; }).find("build b2"), std::string::npos);
  EXPECT_NE(reason([](auto& h) { h.model_digest = "m2"; }).find("m2"), std::string::npos);
  EXPECT_NE(reason([](auto& h) { h.tensor_parallel_size = 3; }).find("--tensor-parallel-size 3"),
            std::string::npos);
  EXPECT_NE(reason([](auto& h) { h.rank = 2; }).find("ranks are 0 to 1"), std::string::npos);
  EXPECT_NE(reason([](auto& h) { h.rank = -1; }).find("rank -1"), std::string::npos);
  EXPECT_NE(reason([](auto& h) { h.protocol_version = 99; }).find("protocol 99"),
            std::string::npos);
}

ipc::Ready ready_with(std::vector<int32_t> sizes) {
  ipc::Ready ready;
  ready.cudagraph_mode = "FULL";
  for (const int32_t size : sizes) {
    ipc::ManifestEntry entry;
    entry.mode = "FULL";
    entry.num_tokens = size;
    entry.digest = static_cast<uint64_t>(size);
    ready.manifest.push_back(entry);
  }
  return ready;
}

TEST(Handshake, NamesBothRanksAndTheFirstKeyThatDiffers) {  // CG-22
  EXPECT_FALSE(ready_mismatch({ready_with({8, 4}), ready_with({8, 4})}).has_value());
  ipc::Ready other = ready_with({8, 4, 2});
  other.manifest[1].digest = 77;
  const std::string text =
      ready_mismatch({ready_with({8, 4, 2}), ready_with({8, 4, 2}), other}).value_or("none");
  EXPECT_NE(text.find("rank 0 and rank 2"), std::string::npos) << text;
  EXPECT_NE(text.find("FULL 4 tokens"), std::string::npos) << text;
  const std::string fewer = ready_mismatch({ready_with({8, 4}), ready_with({8})}).value_or("none");
  EXPECT_NE(fewer.find("rank 1 has nothing"), std::string::npos) << fewer;
  other = ready_with({8, 4});
  other.cudagraph_mode = "PIECEWISE";
  EXPECT_TRUE(ready_mismatch({ready_with({8, 4}), other}).has_value());
}

TEST(Handshake, NamesTheRankThatCapturesOtherLaunchesThanBefore) {  // CG-22
  const std::vector<ipc::Ready> before = {ready_with({8, 4}), ready_with({8, 4})};
  EXPECT_FALSE(recaptured_otherwise({}, before).has_value()) << "the first group";
  EXPECT_FALSE(recaptured_otherwise(before, before).has_value());
  std::vector<ipc::Ready> now = {ready_with({4}), ready_with({16, 4})};
  EXPECT_FALSE(recaptured_otherwise(before, now).has_value()) << "other keys are no other launches";
  now[1].manifest[1].launch_digest = 77;
  const std::string text = recaptured_otherwise(before, now).value_or("none");
  EXPECT_NE(text.find("rank 1 captured FULL 4 tokens"), std::string::npos) << text;
  now[0] = now[1];
  now[0].manifest[1].launch_digest = 0;
  EXPECT_FALSE(ready_mismatch(now).has_value()) << "unequal shards launch unequally";
}

ipc::StepResult answer(StepId step, int32_t rank, int32_t key = 4) {
  ipc::StepResult result;
  result.step = step;
  result.rank = rank;
  result.key_tokens = key;
  return result;
}
ipc::Step step_of(StepId id, size_t tokens = 1) {
  ipc::Step step;
  step.runs.resize(1);
  step.step = id;
  step.runs[0].rows.token_ids.resize(tokens);
  return step;
}

TEST(StepGather, AStepIsDoneWhenEveryRankHasAnswered) {
  StepGather gather(2);
  gather.sent(step_of(1), TimePoint{});
  gather.sent(step_of(2), TimePoint{});
  EXPECT_FALSE(gather.add(1, answer(1, 1), TimePoint{})->has_value());
  EXPECT_FALSE(gather.add(1, answer(2, 1), TimePoint{})->has_value());
  EXPECT_EQ(gather.missing(), std::vector<int32_t>{0});
  const auto done = gather.add(0, answer(1, 0), TimePoint{});
  ASSERT_TRUE(done && *done);
  EXPECT_EQ((*done)->rank, 0);
  EXPECT_EQ(gather.last_done(), 1u);
  EXPECT_EQ(gather.oldest(), 2u);
}

// CG-31: each field of the key and of what ran, on each rank but the first.
TEST(StepGather, RanksThatRanDifferentKeysAreNamed) {
  using Change = void (*)(ipc::StepResult&);
  const std::pair<const char*, Change> changes[] = {
      {"PIECEWISE", [](ipc::StepResult& r) { r.mode = ipc::RuntimeMode::kPiecewise; }},
      {"8 tokens", [](ipc::StepResult& r) { r.key_tokens = 8; }},
      {"3 requests", [](ipc::StepResult& r) { r.key_reqs = 3; }},
      {"uniform", [](ipc::StepResult& r) { r.key_uniform = true; }},
      {"LoRA", [](ipc::StepResult& r) { r.key_lora = true; }},
      {"hidden FULL", [](ipc::StepResult& r) { r.key_hidden = ipc::CaptureHiddenMode::kFull; }},
      {"3 live", [](ipc::StepResult& r) { r.num_tokens = 3; }},
  };
  for (const auto& [says, change] : changes) {
    for (int32_t different = 0; different < 3; ++different) {
      StepGather gather(3);
      gather.sent(step_of(1), TimePoint{});
      Result<std::optional<ipc::StepResult>> done = std::nullopt;
      for (int32_t rank = 0; rank < 3; ++rank) {
        ipc::StepResult result = answer(1, rank, 4);
        result.mode = ipc::RuntimeMode::kFull;
        result.key_reqs = 2;
        result.num_tokens = 2;
        if (rank == different) change(result);
        done = gather.add(rank, result, TimePoint{});
      }
      ASSERT_FALSE(done) << says << " of rank " << different;
      const std::string& message = done.error().message;
      // With rank 0 the odd one out, rank 1 is the first that differs from it.
      const std::string named = fmt::format("rank {}", different == 0 ? 1 : different);
      EXPECT_NE(message.find("rank 0"), std::string::npos) << message;
      EXPECT_NE(message.find(named), std::string::npos) << message;
      EXPECT_NE(message.find(says), std::string::npos) << message;
    }
  }
}

TEST(StepGather, AnAnswerOutOfTurnIsAnError) {
  StepGather gather(2);
  EXPECT_FALSE(gather.add(0, answer(1, 0), TimePoint{}));
  gather.sent(step_of(1), TimePoint{});
  EXPECT_FALSE(gather.add(0, answer(2, 0), TimePoint{}));
  EXPECT_FALSE(gather.add(0, answer(1, 1), TimePoint{}));
}

TEST(StepDeadline, FollowsTheStepsOfItsSizeAndHasAFloor) {
  StepDeadline deadline;
  EXPECT_EQ(deadline.of(1), Duration(StepDeadline::kUnknown));
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) deadline.observe(1, milliseconds(5));
  EXPECT_EQ(deadline.of(1), Duration(StepDeadline::kLeast));
  EXPECT_EQ(deadline.of(2), Duration(StepDeadline::kLeast));
  EXPECT_EQ(deadline.of(512), 512 * Duration(milliseconds(100))) << "in proportion to its tokens";
  EXPECT_EQ(deadline.of(1 << 20), Duration(StepDeadline::kUnknown)) << "and not for ever";
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) deadline.observe(512, seconds(1));
  EXPECT_EQ(deadline.of(600), Duration(seconds(20)));
  EXPECT_EQ(deadline.of(100), Duration(seconds(20))) << "as the next larger size";
  EXPECT_EQ(deadline.of(1), Duration(StepDeadline::kLeast));
}

TEST(StepDeadline, FirstStepsOfRanksThatDoNotTellTheirPlaceHaveSeconds_R7) {
  StepDeadline deadline;
  EXPECT_EQ(deadline.of(1, false), Duration(milliseconds(8005)));
  EXPECT_EQ(deadline.of(2048, false), Duration(milliseconds(8000 + 2048 * 5)));
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) deadline.observe(1, milliseconds(20));
  EXPECT_EQ(deadline.of(1, false), Duration(StepDeadline::kLeast));
  EXPECT_EQ(deadline.of(2048, false), Duration(milliseconds(8000 + 2048 * 5))) << "not two minutes";
  EXPECT_EQ(deadline.of(2048), Duration(StepDeadline::kUnknown));
}

TEST(StepDeadline, ASlowStepRunsItsClockFromTheEndOfTheOneBefore) {
  StepGather gather(1);
  gather.sent(step_of(1), TimePoint{});
  gather.sent(step_of(2), TimePoint{});
  const TimePoint later = TimePoint{} + seconds(100);
  ASSERT_TRUE(gather.add(0, answer(1, 0), later));
  EXPECT_EQ(gather.deadline(), later + Duration(StepDeadline::kUnknown));
}

ipc::Progress progress(ipc::StartPhase phase, int64_t done, int64_t total) {
  return {phase, done, total, ""};
}

TEST(StartProgress, WeightsAreToldInMegabytes) {
  const StartProgress one{0, 1, progress(ipc::StartPhase::kLoadWeights, 3'000'000, 9'500'000)};
  EXPECT_EQ(progress_line(one), "loading weights 3/9 MB");
  EXPECT_EQ(progress_bar(one, 10), "[###-------] loading weights 3/9 MB");
}

TEST(StartBoard, ShowsTheRankFurthestBehindAndOnlyChanges) {
  StartBoard board(2);
  EXPECT_TRUE(board.report(0, progress(ipc::StartPhase::kCapture, 1, 10)).has_value());
  const auto shown = board.report(1, progress(ipc::StartPhase::kLoadWeights, 10, 1000));
  ASSERT_TRUE(shown.has_value());
  EXPECT_EQ(progress_line(*shown), "rank 1: loading weights 10/1000");
  EXPECT_FALSE(board.report(1, progress(ipc::StartPhase::kLoadWeights, 11, 1000)).has_value());
  EXPECT_FALSE(board.report(0, progress(ipc::StartPhase::kCapture, 2, 10)).has_value());
  const auto next = board.report(1, progress(ipc::StartPhase::kCapture, 5, 10));
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(progress_bar(*next, 10), "[##--------] rank 0: capturing graphs 2/10");
}

TEST(StartBoard, FindsRanksThatDoNotMoveThoughTheyWaitForNobody_R7) {
  const auto at = [](int64_t s) { return TimePoint{} + std::chrono::seconds(s); };
  StartBoard board(3);
  board.moved(0, at(0), true);
  board.moved(1, at(0), true);
  EXPECT_TRUE(board.stuck(at(100)).empty()) << "they may wait for rank 2";
  board.restart(at(90));
  board.moved(2, at(90), true);
  EXPECT_TRUE(board.stuck(at(89)).empty());
  EXPECT_EQ(board.stuck(at(90)), (std::vector<int32_t>{0, 1, 2})) << "nobody stands out";
  // Who loads waits for nobody, though another is further behind and gets on.
  board.report(0, progress(ipc::StartPhase::kLoadWeights, 8, 10));
  board.moved(0, at(100), true);
  board.report(1, progress(ipc::StartPhase::kLoadWeights, 2, 10));
  board.moved(1, at(150), true);
  board.moved(2, at(120), false);
  EXPECT_EQ(board.stuck(at(130)), std::vector<int32_t>{0});
  // In captures the others wait for the one behind.
  for (int32_t rank = 0; rank < 3; ++rank) {
    board.report(rank, progress(ipc::StartPhase::kCapture, rank == 1 ? 3 : 4, 10));
    board.moved(rank, at(200), true);
  }
  EXPECT_EQ(board.stuck(at(200)), std::vector<int32_t>{1});
  board.moved(1, at(210), false);
  EXPECT_EQ(board.stuck(at(205)), (std::vector<int32_t>{0, 2}));
}

}  // namespace
}  // namespace refrain
