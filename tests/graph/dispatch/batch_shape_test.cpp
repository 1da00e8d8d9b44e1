// What dispatch is told of a step.

#include "worker/dispatch/batch_shape.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

using enum ipc::CaptureHiddenMode;

ipc::Step step_of(std::vector<int32_t> tokens, std::vector<int32_t> computed) {
  ipc::Step step;
  step.runs.resize(1);
  step.runs[0].rows.num_tokens = std::move(tokens);
  step.runs[0].rows.computed = std::move(computed);
  return step;
}

TEST(BatchShape, OneTokenChunkOverContextCountsAsDecode) {
  EXPECT_TRUE(batch_shape(step_of({1, 1}, {7, 1}), std::vector{1}).uniform);
  EXPECT_FALSE(
      batch_shape(step_of({1, 1}, {7, 0}), std::vector{1}).uniform);  // a prompt of one token
  EXPECT_FALSE(batch_shape(step_of({1, 2}, {7, 9}), std::vector{1}).uniform);
  EXPECT_TRUE(batch_shape(step_of({3, 3}, {7, 9}), std::vector{3}).uniform);
  EXPECT_FALSE(batch_shape(step_of({1, 1}, {7, 9}), std::vector{3}).uniform);
  EXPECT_FALSE(batch_shape(step_of({}, {}), std::vector{1}).uniform);
}

TEST(BatchShape, ReadsTheModelsRunAndTakesOneOfItsDraftModelBehindIt_CG39) {
  ipc::Step step = step_of({4, 1}, {0, 9});
  EXPECT_EQ(batch_shape(step, std::vector{1}).num_reqs, 2);
  step.runs.emplace_back();
  EXPECT_THROW(batch_shape(step, std::vector{1}), FatalError);
  step.runs[1].program = ipc::ProgramId::kDraftModel;
  EXPECT_EQ(batch_shape(step, std::vector{1}).num_reqs, 2);
  step.runs[1].rows = step.runs[0].rows;
  EXPECT_THROW(batch_shape(step, std::vector{1}), FatalError) << "it has no rows of its own";
  std::swap(step.runs[0], step.runs[1]);
  EXPECT_THROW(batch_shape(step, std::vector{1}), FatalError);
  step.runs.clear();
  EXPECT_EQ(batch_shape(step, std::vector{1}).num_tokens, 0);
}

TEST(BatchShape, CG35WhichHiddenStatesAreReadFollowsFromTheStep) {
  const auto read = [](const ipc::Step& step, const HiddenReaders& readers) {
    return batch_shape(step, std::vector{1}, readers).hidden;
  };
  ipc::Step step = step_of({4, 1}, {0, 9});
  step.runs[0].rows.flags = {0, 0};
  const HiddenReaders head{.draft = kFull};
  EXPECT_EQ(read(step, head), kNull) << "no run of the head";
  EXPECT_EQ(read(step, {.pooling = kLast}), kNull) << "no prompt ends";
  EXPECT_EQ(read(step, {.pooling = kFull}), kFull);
  step.runs[0].rows.flags[1] = ipc::kSamples;
  EXPECT_EQ(read(step, {.pooling = kLast}), kLast);
  EXPECT_EQ(read(step, {.pooling = kFull}), kFull);
  EXPECT_EQ(read(step, {}), kNull);
  step.runs.push_back({ipc::ProgramId::kDraftModel, ipc::ForwardMode::kDraftExtend, {}});
  EXPECT_EQ(read(step, head), kFull);
  EXPECT_EQ(read(step, {}), kNull) << "a draft model that is no head";
  step.runs.clear();
  EXPECT_EQ(read(step, head), kNull) << "idle";
}

TEST(BatchShape, CarriesTheStepsRestrictions) {
  ipc::Step step = step_of({4, 1}, {0, 9});
  step.cascade = true;
  step.allowed_modes = 3;
  const BatchShape shape = batch_shape(step, std::vector{1});
  EXPECT_EQ(shape.num_tokens, 5);
  EXPECT_EQ(shape.num_reqs, 2);
  EXPECT_TRUE(shape.cascade);
  EXPECT_EQ(shape.allowed_modes, 3);
}

}  // namespace
}  // namespace refrain::worker
