// linear_recurrence: chunks of a request go on where its slot's state is; against double precision.
#include <cmath>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr int32_t kStates = 3, kRowTokens = 9, kRowReqs = 4;

class LinearRecurrenceTest : public OpsTest {};

struct RecurrenceCase {
  DType dtype;
  int64_t cols;
  int32_t versions;
};
std::vector<RecurrenceCase> recurrence_cases() {
  std::vector<RecurrenceCase> all;
  for (const DType dtype : kFloatTypes)
    for (const int64_t cols : {1, 16, 31, 200})
      for (const int32_t versions : {1, 2, 4}) all.push_back({dtype, cols, versions});
  return all;
}

TEST_P(LinearRecurrenceTest, GoesOnFromTheSlotsStateAndLeavesOtherSlotsAlone) {
  const std::vector<int32_t> starts = {0, 1, 6, 7, 7}, slots = {2, 0, 1, kStates};
  const std::vector<int32_t> positions = {4, 0, 1, 2, 3, 4, 11, 0, 0};
  constexpr int32_t kLiveReqs = 3, kLiveTokens = 7;
  for (const auto& [dtype, cols, versions] : recurrence_cases()) {
    const auto gate = random_values(kRowTokens * cols, dtype, 1);
    const auto in = random_values(kRowTokens * cols, dtype, 2);
    const auto before = random_values((kStates + 1) * versions * cols, DType::kFloat32, 3);
    LinearRecurrenceArgs args;
    args.gate = put_matrix(harness(), gate, kRowTokens, cols, dtype, 2);
    args.in = put_matrix(harness(), in, kRowTokens, cols, dtype, 3);
    args.out = fresh_matrix(harness(), kRowTokens, cols, dtype, 1);
    args.state = harness().put(before);
    args.positions = harness().put(positions);
    args.query_start = harness().put(starts);
    args.row_slot = harness().put(slots);
    args.cols = static_cast<int32_t>(cols);
    args.versions = versions;
    args.reqs = {kRowReqs, put_int(harness(), kLiveReqs)};
    table().linear_recurrence(stream(), args);

    std::vector<double> state(before.begin(), before.end()), out;
    for (int32_t row = 0; row < kLiveReqs; ++row) {
      // Before a request's first token stands what its slot was cleared to, as any version.
      const auto version = [&](int32_t position) {
        const int32_t number = (position + versions) % versions;
        return state.begin() + (slots[row] * versions + number) * cols;
      };
      std::vector<double> h(cols);
      std::copy_n(version(positions[starts[row]] - 1), cols, h.begin());
      for (int32_t t = starts[row]; t < starts[row + 1]; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
          const double a = 1 / (1 + std::exp(-double{gate[t * cols + c]}));
          h[c] = a * h[c] + (1 - a) * in[t * cols + c];
          out.push_back(h[c]);
        }
        std::copy(h.begin(), h.end(), version(positions[t]));
      }
    }
    const auto got = get_matrix(harness(), args.out, kRowTokens, cols);
    const std::vector<double> tolerance(out.size(), 4e-6);
    expect_close({got.begin(), got.begin() + kLiveTokens * cols}, out, tolerance, dtype);
    for (int64_t i = kLiveTokens * cols; i < kRowTokens * cols; ++i) {
      ASSERT_TRUE(std::isnan(got[i])) << "a padded token was written";
    }
    const auto after = harness().get(args.state, (kStates + 1) * versions * cols);
    for (size_t i = 0; i < after.size(); ++i) {
      ASSERT_NEAR(after[i], state[i], 4e-6) << "state " << i;
      if (i >= static_cast<size_t>(kStates * versions * cols)) {
        ASSERT_EQ(after[i], before[i]) << "the reserved slot";
      }
    }
  }
}

// CG-40: of a row of drafts the next one may take any number: it goes on behind those alone.
TEST_P(LinearRecurrenceTest, CG40GoesOnBehindTheTokensThatWereAccepted) {
  constexpr int32_t kVersions = 4, kFrom = 6, kCols = 31;
  const auto gate = random_values(kVersions * kCols, DType::kFloat32, 1);
  const auto in = random_values(kVersions * kCols, DType::kFloat32, 2);
  const auto before = random_values(kVersions * kCols, DType::kFloat32, 3);
  const auto run = [&](float* state, int32_t from, int32_t count, int32_t first) {
    LinearRecurrenceArgs args;
    args.gate = put_matrix(harness(), gate, kVersions, kCols, DType::kFloat32, 0);
    args.in = put_matrix(harness(), in, kVersions, kCols, DType::kFloat32, 0);
    args.out = fresh_matrix(harness(), kVersions, kCols, DType::kFloat32, 0);
    args.state = state;
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < kVersions; ++i) positions.push_back(from + i - first);
    args.positions = harness().put(positions);
    args.query_start = harness().put(std::vector<int32_t>{first, first + count});
    args.row_slot = harness().put(std::vector<int32_t>{0});
    args.cols = kCols;
    args.versions = kVersions;
    args.reqs = {1, put_int(harness(), 1)};
    table().linear_recurrence(stream(), args);
    const auto out = get_matrix(harness(), args.out, kVersions, kCols);
    return std::vector<float>(out.begin() + first * kCols, out.begin() + (first + count) * kCols);
  };
  for (int32_t accepted = 1; accepted <= kVersions; ++accepted) {
    float* drafted = harness().put(before);
    run(drafted, kFrom, kVersions, 0);
    float* plain = harness().put(before);
    for (int32_t t = 0; t < accepted; ++t) run(plain, kFrom + t, 1, t);
    EXPECT_EQ(run(drafted, kFrom + accepted, 2, 1), run(plain, kFrom + accepted, 2, 1))
        << accepted << " accepted";
  }
}

INSTANTIATE_TEST_SUITE_P(Device, LinearRecurrenceTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
