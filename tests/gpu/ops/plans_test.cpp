// Linears of many rows: one algorithm of cuBLASLt for a range of row counts, chosen once.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "kernels/cuda/gemm_choices.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/launcher.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

class PlansTest : public OpsTest {
 protected:
  static constexpr int64_t kN = 256, kK = 512;
  const GemmPlans& plans() { return *launcher(stream()).gemm_plans; }
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    weight_ = put_weight(harness(), random_values(kN * kK, DType::kBFloat16, 1), kN, kK,
                         DType::kBFloat16);
    in_ = put_matrix(harness(), random_values(kRows * kK, DType::kBFloat16, 2), kRows, kK,
                     DType::kBFloat16);
    out_ = fresh_matrix(harness(), kRows, kN, DType::kBFloat16);
  }
  void run(int32_t rows) {
    table().linear(stream(), {in_, weight_, nullptr, {}, out_, {rows, put_int(harness(), rows)}});
  }
  static constexpr int32_t kRows = 700;
  Weight weight_;
  Matrix in_, out_;
};

TEST_P(PlansTest, RowCountsOfARangeShareTheirAlgorithm) {
  for (int32_t rows = 257; rows <= 320; ++rows) {
    EXPECT_EQ(table().planned_rows(rows), 320);
    run(rows);
  }
  EXPECT_EQ(plans().size(), 64u);
  EXPECT_EQ(plans().algorithms(), 1u);
  run(321);
  EXPECT_EQ(plans().algorithms(), 2u);
}

TEST_P(PlansTest, WhatWasPlannedForEveryRangeIsAllThereIs) {
  size_t ranges = 0;
  const int32_t few = table().few_rows.max_plain_rows;  // those have kernels of their own
  for (int32_t rows = few; rows < kRows; ++ranges) {
    rows = std::min(table().planned_rows(rows + 1), kRows);
    run(rows);
  }
  EXPECT_EQ(plans().algorithms(), ranges);
  for (int32_t rows = few + 1; rows <= kRows; rows += 9) run(rows);
  EXPECT_EQ(plans().algorithms(), ranges);
}

// What is timed is kept, and a later start times nothing.
TEST_P(PlansTest, TheFastestIsChosenWhereLaunchesMayBeTimedAndKept) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "refrain-plans-test" / "choices";
  std::filesystem::remove(file);
  CudaLauncher& launcher = kernels::launcher(stream());
  run(300);
  EXPECT_EQ(plans().timed(), 0) << "a step's results are needed";
  const auto expected = get_matrix(harness(), out_, 300, kN);
  for (const int64_t timed : {1, 0}) {
    GemmChoices choices(file, "this device");
    GemmPlans plans;
    GemmPlans* before = std::exchange(launcher.gemm_plans, &plans);
    launcher.gemm_choices = &choices;
    launcher.tunes = true;
    run(300);
    launcher.tunes = false;
    choices.save();
    launcher.gemm_choices = nullptr;
    launcher.gemm_plans = before;
    EXPECT_EQ(plans.timed(), timed);
    EXPECT_EQ(plans.algorithms(), 1u);
    EXPECT_EQ(choices.size(), 1u);
    const auto got = get_matrix(harness(), out_, 300, kN);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], 1e-2 * (1 + std::abs(expected[i]))) << i;
  }
  EXPECT_EQ(GemmChoices(file, "another device").size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Device, PlansTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
