#include "runtime/sched/draft_control.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

struct Costs {
  double with = 0.012, without = 0.010;  // seconds a step
  double kept = 2.5;                     // tokens a row and step with drafts
};

// Runs `steps` steps of so many rows; how many of them carried drafts.
int run(DraftControl& control, int32_t rows, int steps, const Costs& costs) {
  int with = 0;
  for (int i = 0; i < steps; ++i) {
    const bool drafts = control.wants_drafts(rows);
    with += drafts ? 1 : 0;
    control.measured(drafts, rows, drafts ? static_cast<int64_t>(costs.kept * rows) : rows,
                     drafts ? costs.with : costs.without);
  }
  return with;
}

TEST(DraftControl, DraftsAreUsedWhereTheyPay) {
  DraftControl control;
  EXPECT_TRUE(control.wants_drafts(4));
  run(control, 4, 20, {});
  EXPECT_GE(run(control, 4, 520, {}), 480) << "all but the probes";
}

TEST(DraftControl, DraftsAreLeftOutWhereTheyDoNotPay_AndTriedAgain) {
  DraftControl control;
  run(control, 4, 20, {.kept = 1.0});
  const int tried = run(control, 4, 520, {.kept = 1.0});
  EXPECT_GE(tried, 4);
  EXPECT_LE(tried, 40);
  // The text becomes one that repeats.
  run(control, 4, 70, {.kept = 3.0});
  EXPECT_GE(run(control, 4, 100, {.kept = 3.0}), 90);
}

TEST(DraftControl, EachNumberOfRequestsIsJudgedByItself) {
  DraftControl control;
  run(control, 1, 30, {});
  run(control, 64, 30, {.with = 0.050});
  EXPECT_GE(run(control, 1, 50, {}), 44);
  EXPECT_LE(run(control, 64, 50, {.with = 0.050}), 6);
}

}  // namespace
}  // namespace refrain
