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
    if (!IsSkipped()) make(kN, kK);
  }
  void make(int64_t n, int64_t k, DType dtype = DType::kBFloat16) {
    // Of a large weight the same rows again and again.
    const std::vector<float> some = random_values(kN * k, dtype, 1);
    std::vector<float> values;
    values.reserve(static_cast<size_t>(n * k));
    while (std::ssize(values) < n * k) values.insert(values.end(), some.begin(), some.end());
    values.resize(static_cast<size_t>(n * k));
    weight_ = put_weight(harness(), values, n, k, dtype);
    in_ = put_matrix(harness(), random_values(kRows * k, dtype, 2), kRows, k, dtype);
    out_ = fresh_matrix(harness(), kRows, n, dtype);
  }
  void run(int32_t rows) {
    table().linear(stream(), {in_, weight_, nullptr, {}, out_, {rows, put_int(harness(), rows)}});
  }
  void warm_up(int32_t rows) {
    launcher(stream()).tunes = true;
    run(rows);
    launcher(stream()).tunes = false;
  }
  static constexpr int32_t kRows = 700;
  Weight weight_;
  Matrix in_, out_;
};

TEST_P(PlansTest, RowCountsOfARangeShareTheirAlgorithm) {
  for (int32_t rows = 257; rows <= 288; ++rows) {
    EXPECT_EQ(table().planned_rows(rows), 288);
    run(rows);
  }
  EXPECT_EQ(plans().size(), 32u);
  EXPECT_EQ(plans().algorithms(), 1u);
  run(289);
  EXPECT_EQ(plans().algorithms(), 2u);
}

TEST_P(PlansTest, WhatAWarmUpBroughtHasAnAlgorithmOfItsOwn) {
  for (const int32_t rows : {264, 272, 288}) warm_up(rows);
  EXPECT_EQ(plans().algorithms(), 3u);
  for (const int32_t rows : {264, 270, 288}) run(rows);  // 270: that of 288
  EXPECT_EQ(plans().algorithms(), 3u);
  EXPECT_EQ(plans().timed(), 0) << "each costs more to load than to run";
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

// An algorithm that a warm-up brought for its rows may not take those at the end of their range.
TEST_P(PlansTest, WhatAWarmUpBroughtIsNotUsedForRowsThatItDoesNotTake) {
  CudaLauncher& launcher = kernels::launcher(stream());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t n : {4, 16, 24, 40, 64, 96, 200}) {
      for (const int64_t k : {16, 24, 32, 40, 64, 96, 192}) {
        make(n, k, dtype);
        GemmPlans plans;
        GemmPlans* before = std::exchange(launcher.gemm_plans, &plans);
        for (const int32_t rows : {1, 2, 3, 4, 7, 17, 24, 33, 48, 49, 81, 97, 113, 129, 289})
          warm_up(rows);
        for (const int32_t rows : {16, 32, 48, 64, 96, 112, 128, 160, 320}) {
          SCOPED_TRACE(testing::Message() << rows << " rows, " << n << " of " << k);
          EXPECT_NO_THROW(run(rows));
        }
        launcher.gemm_plans = before;
      }
    }
  }
}

// What is timed is kept, and a later start times nothing.
TEST_P(PlansTest, TheFastestIsChosenWhereLaunchesMayBeTimedAndKept) {
  make(int64_t{32} * kN, int64_t{16} * kK);  // worth it
  const auto file = std::filesystem::path(::testing::TempDir()) / "refrain-plans-test" / "choices";
  std::filesystem::remove(file);
  CudaLauncher& launcher = kernels::launcher(stream());
  run(300);
  EXPECT_EQ(plans().timed(), 0) << "a step's results are needed";
  const auto expected = get_matrix(harness(), out_, 300, out_.stride);
  for (const int64_t timed : {1, 0}) {
    GemmChoices choices(file, "this device");
    GemmPlans plans;
    GemmPlans* before = std::exchange(launcher.gemm_plans, &plans);
    launcher.gemm_choices = &choices;
    warm_up(300);
    choices.save();
    launcher.gemm_choices = nullptr;
    launcher.gemm_plans = before;
    EXPECT_EQ(plans.timed(), timed);
    EXPECT_EQ(plans.algorithms(), 2u) << "its own and its range's";
    EXPECT_EQ(choices.size(), 1u);
    const auto got = get_matrix(harness(), out_, 300, out_.stride);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], 1e-2 * (1 + std::abs(expected[i]))) << i;
  }
  EXPECT_EQ(GemmChoices(file, "another device").size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Device, PlansTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
