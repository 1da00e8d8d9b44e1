// A model with three kinds of state groups, served: whatever the mode, the ranks, the chunks and
// the room for blocks, its tokens are those of plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/states/hybrid_requests.h"

namespace refrain::tests {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

using hybrid::expected;
using hybrid::model;

ServedOptions options_of(const HybridModel& hybrid = model()) {
  ServedOptions options;
  options.build = hybrid.build();
  return options;
}

class EveryMode : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    const auto& [mode, ranks] = GetParam();
    if (ranks > 1 && options_.device != "host") GTEST_SKIP() << "a process a GPU";
    options_.config.cudagraph_mode = mode;
    options_.config.tensor_parallel_size = ranks;
  }
  ServedOptions options_ = options_of();
};

TEST_P(EveryMode, TokensAreThoseOfPlainLoops) {
  const std::string& mode = std::get<0>(GetParam());
  Served served(model().directory(), options_);
  EXPECT_EQ(serve_all(served), expected());
  if (mode != "NONE") {
    EXPECT_GT(served.modes[mode == "PIECEWISE" ? "PIECEWISE" : "FULL"], 0);
  }
  EXPECT_EQ(served.scheduler->stats().blocks_free, served.scheduler->stats().blocks_total);
}

INSTANTIATE_TEST_SUITE_P(States, EveryMode, every_mode_and_ranks(), name_of_mode_and_ranks);

// CG-39, SPLIT_PREFILL: long rows run in parts, whose steps take turns with those who decode.
TEST_P(EveryMode, CG39PromptsInPartsBetweenDecodesGiveTheSameTokens) {
  for (const int32_t drafts : {0, 2}) {
    ServedOptions options = options_;
    options.config.split_prefill = 3;
    options.config.num_speculative_tokens = drafts;
    options.split_prefill_tokens = 5;
    options.poison = true;
    Served served(model().directory(), options);
    EXPECT_EQ(serve_all(served), expected());
    EXPECT_GT(served.parts[0], 1);
    EXPECT_EQ(served.parts[1], served.parts[0]);
    EXPECT_EQ(served.parts[2], served.parts[0]);
  }
}

// CG-38: two execution contexts run batches of one Program at the same time, the host's team or the
// GPU's multiprocessors divided.
TEST_P(EveryMode, CG38TwoContextsAtOnceGiveTheSameTokens) {
  for (const int32_t drafts : {0, 2}) {
    ServedOptions options = options_;
    options.config.num_speculative_tokens = drafts;
    options.contexts = 2;
    Served served(model().directory(), options);
    EXPECT_EQ(serve_all(served), expected());
  }
}

// The window holds 12 tokens and a chunk 16: at most 12 of the blocks of 4 that 60 tokens take.
TEST(States, ALongRequestGivesBackTheBlocksThatItsWindowHasPassed) {
  ServedOptions options = options_of();
  options.num_blocks = {64, 13, 0};
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  served.outcomes.clear();
  served.add(1, prompt(40, 2), 50);
  served.run();
  EXPECT_EQ(served.outcomes[1].tokens, model().answer(prompt(40, 2), 50));
}

TEST(States, PreemptedRequestsBeginAnewInEveryGroup) {
  ServedOptions options = options_of();
  options.num_blocks = {26, 20, 0};  // for one request of 96 tokens
  Served served(model().directory(), options);
  for (RequestId id = 1; id <= 4; ++id) served.add(id, prompt(20, static_cast<int>(id)), 50);
  served.run();
  for (RequestId id = 1; id <= 4; ++id)
    EXPECT_EQ(served.outcomes[id].tokens, model().answer(prompt(20, static_cast<int>(id)), 50));
  EXPECT_GT(served.scheduler->stats().preemptions, 0u);
}

TEST(States, APrefixIsTakenFromBlocksAndCheckpoints) {
  Served served(model().directory(), options_of());
  const std::vector<TokenId> tokens = hybrid::expect_prefixes_found(served);
  served.add(9, tokens, 6, "another salt");
  served.run();
  EXPECT_EQ(served.outcomes[9].cached, 0);
}

TEST(States, PoisonedPaddingReachesNoRow_CG27) {
  ServedOptions options = options_of();
  options.poison = true;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
}

TEST(States, AuditedStepsAgree_CG41) {
  ServedOptions options = options_of();
  options.config.audit = true;
  options.audit_rate = 0.5;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.audited, 10);
}

// CG-3: each group has a support of its own, and the least of them decides.
TEST(States, CG3TheLeastSupportOfTheGroupsDecides) {
  HybridShape shape;
  shape.recurrence = worker::AttentionCGSupport::kUniformSingleTokenDecode;
  const HybridModel hybrid(shape);
  ServedOptions options = options_of(hybrid);
  options.config.cudagraph_mode = "FULL";
  Served served(hybrid.directory(), options);
  EXPECT_NE(served.ready.cudagraph_mode, "FULL");
  EXPECT_THAT(served.ready.warnings, Contains(HasSubstr("recurrent")));
  EXPECT_EQ(serve_all(served), expected());
}

}  // namespace
}  // namespace refrain::tests
