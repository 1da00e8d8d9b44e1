// 2,000 seeds on every commit, and the same seed gives the same event log.
#include "tests/sim/simulation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace refrain::sim {
namespace {

#if defined(REFRAIN_ASAN) || defined(REFRAIN_TSAN)
constexpr uint64_t kSeeds = 200;  // ten times slower
#else
constexpr uint64_t kSeeds = 2000;
#endif
constexpr uint64_t kShards = 8;  // tests of their own, so that ctest runs them side by side
constexpr int kMostFailures = 3;

class Seeds : public ::testing::TestWithParam<uint64_t> {};

TEST_P(Seeds, KeepThePromise_R20) {
  int failures = 0;
  uint64_t complete = 0, adoptions = 0, isolated = 0;
  for (uint64_t seed = GetParam(); seed < kSeeds && failures < kMostFailures; seed += kShards) {
    const SimReport report = run_seed(seed);
    complete += report.complete;
    adoptions += report.adoptions;
    isolated += report.isolated;
    if (report.faults.empty()) continue;
    ++failures;
    ADD_FAILURE() << "seed " << seed << ":\n  "
                  << fmt::format("{}", fmt::join(report.faults, "\n  "))
                  << "\n  replay: tools/sim --seed " << seed << " --verbose";
  }
  EXPECT_GT(complete, kSeeds / kShards) << "hardly any request was answered";
  EXPECT_GT(adoptions, kSeeds / kShards / 20) << "hardly any group was adopted";
  EXPECT_GE(isolated, kSeeds / kShards / 50) << "hardly any request was found to end its workers";
}
INSTANTIATE_TEST_SUITE_P(Simulation, Seeds, ::testing::Range(uint64_t{0}, kShards));

TEST(Simulation, TheSameSeedGivesTheSameEventLog_R20) {
  for (uint64_t seed = 0; seed < kSeeds / 100; ++seed) {
    const SimReport first = run_seed(seed);
    const SimReport second = run_seed(seed);
    ASSERT_GT(first.log.size(), 100u);
    const auto [one, other] = std::ranges::mismatch(first.log, second.log);
    ASSERT_EQ(first.log.size(), second.log.size()) << "seed " << seed;
    ASSERT_TRUE(one == first.log.end()) << "seed " << seed << ": " << *one << " and " << *other;
    EXPECT_NE(digest_of(first.log), digest_of(run_seed(seed + 1000).log));
  }
}

}  // namespace
}  // namespace refrain::sim
