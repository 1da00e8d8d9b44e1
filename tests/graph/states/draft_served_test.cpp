// CG-40: a model and its draft model, served: tokens are those without speculation, whatever the
// mode, the ranks and the room for blocks; and a model that drafts for itself is always right, so
// that what the draft model keeps of a request is right after every chunk, preemption and hit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/graph/states/requests.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests::draft_served {
namespace {

const TinyModel& model() {
  static const TinyModel tiny;
  return tiny;
}
const TinyModel& another() {
  static const TinyModel tiny({.layers = 1, .heads = 2, .head_dim = 32, .seed = 8});
  return tiny;
}

ServedOptions options_of(const TinyModel* draft, int32_t drafts = 3) {
  ServedOptions options;
  options.config.max_num_batched_tokens = 24;
  if (draft == nullptr) return options;
  options.config.num_speculative_tokens = drafts;
  options.config.draft_model = true;
  options.draft = draft->directory();
  return options;
}

const Answers& expected() {
  static const Answers answers = [] {
    Served plain(model().directory(), options_of(nullptr));
    return serve_all(plain);
  }();
  return answers;
}

int64_t wrong_drafts(const Served& served) {
  const DraftCounts drafts = served.scheduler->stats().drafts;
  return static_cast<int64_t>(drafts.tokens) -
         std::accumulate(drafts.accepted.begin(), drafts.accepted.end(), int64_t{0});
}

class EveryDraftMode : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(EveryDraftMode, CG40TokensAreThoseWithoutSpeculation) {
  const auto& [mode, ranks] = GetParam();
  if (ranks > 1 && ServedOptions{}.device != "host") GTEST_SKIP() << "a process a GPU";
  for (const TinyModel* draft : {&model(), &another()}) {
    ServedOptions options = options_of(draft);
    options.config.cudagraph_mode = mode;
    options.config.tensor_parallel_size = ranks;
    Served served(model().directory(), options);
    EXPECT_EQ(serve_all(served), expected());
    const DraftCounts drafts = served.scheduler->stats().drafts;
    EXPECT_GT(drafts.tokens, 50u);
    if (draft == &model()) {
      EXPECT_EQ(wrong_drafts(served), 0);
    }
  }
}

// Every rank has the whole draft model, and all make the same drafts; those of the model itself,
// whose sums over ranks add in another order, may now and then be wrong.
TEST_P(EveryDraftMode, CG40ADraftModelOnEveryRankAloneGivesTheSameTokens) {
  const auto& [mode, ranks] = GetParam();
  if (ranks > 1 && ServedOptions{}.device != "host") GTEST_SKIP() << "a process a GPU";
  for (const TinyModel* draft : {&model(), &another()}) {
    ServedOptions options = options_of(draft);
    options.config.cudagraph_mode = mode;
    options.config.tensor_parallel_size = ranks;
    options.config.draft_tensor_parallel_size = 1;
    Served served(model().directory(), options);
    EXPECT_EQ(serve_all(served), expected());
    EXPECT_GT(served.scheduler->stats().drafts.tokens, 50u);
    if (draft == &model()) {
      EXPECT_LT(wrong_drafts(served), 5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, EveryDraftMode, every_mode_and_ranks(), [](const auto& info) {
  return std::get<0>(info.param) + "_tp" + std::to_string(std::get<1>(info.param));
});

TEST(DraftServed, CG40PreemptedRequestsDraftRightAgain) {
  ServedOptions options = options_of(&model());
  options.num_blocks = {30, 30};  // for one request of 96 tokens
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.scheduler->stats().preemptions, 0u);
  EXPECT_EQ(wrong_drafts(served), 0);
}

TEST(DraftServed, CG40AHitBringsTheDraftModelsBlocksToo) {
  Served served(model().directory(), options_of(&model()));
  auto tokens = prompt(41, 2);
  Served plain(model().directory(), options_of(nullptr));
  RequestId id = 0;
  for (const int32_t cached : {0, 40, 40}) {
    served.add(++id, tokens, 12);
    served.run();
    plain.add(id, tokens, 12);
    plain.run();
    EXPECT_EQ(served.outcomes[id].cached, cached);
    EXPECT_EQ(served.outcomes[id].tokens, plain.outcomes[id].tokens);
    tokens.push_back(static_cast<TokenId>(100 + id));
  }
  EXPECT_EQ(wrong_drafts(served), 0);
}

TEST(DraftServed, CG41AuditedStepsAgree) {
  ServedOptions options = options_of(&another());
  options.config.audit = true;
  options.audit_rate = 0.5;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.audited, 10);
}

TEST(DraftServed, CG40EveryNumberOfDraftsGivesTheSameTokens) {
  for (const int32_t drafts : {1, 2, 5}) {
    Served served(model().directory(), options_of(&model(), drafts));
    EXPECT_EQ(serve_all(served), expected()) << drafts;
    EXPECT_EQ(wrong_drafts(served), 0) << drafts;
  }
}

}  // namespace
}  // namespace refrain::tests::draft_served
