// CG-40: a model with a slot state speculates. After a verification its state is that of the
// accepted tokens alone, so that its tokens are those of plain loops, whatever drafts were wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/graph/states/hybrid_requests.h"
#include "tests/graph/tiny_model.h"
#include "worker/program/printer.h"

namespace refrain::tests::hybrid_drafts {
namespace {

using hybrid::expected;
using hybrid::model;

const TinyModel& draft_model() {
  static const TinyModel tiny({.layers = 1, .heads = 2, .head_dim = 32, .seed = 8});
  return tiny;
}

enum class Method { kNgram, kDraftModel };

ServedOptions options_of(Method method, int32_t drafts = 3) {
  ServedOptions options;
  options.build = model().build();
  options.config.max_num_batched_tokens = 24;
  options.config.num_speculative_tokens = drafts;
  options.config.draft_model = method == Method::kDraftModel;
  options.draft = draft_model().directory();
  return options;
}

struct Drafts {
  int64_t right = 0, wrong = 0;
};
Drafts drafts_of(const Served& served) {
  const DraftCounts counts = served.scheduler->stats().drafts;
  Drafts drafts;
  drafts.right = std::accumulate(counts.accepted.begin(), counts.accepted.end(), int64_t{0});
  drafts.wrong = static_cast<int64_t>(counts.tokens) - drafts.right;
  return drafts;
}

class HybridDraftMode
    : public ::testing::TestWithParam<std::tuple<std::string, int, Method, int32_t>> {};

TEST_P(HybridDraftMode, CG40TokensAreThoseOfPlainLoops) {
  const auto& [mode, ranks, method, drafts] = GetParam();
  ServedOptions options = options_of(method, drafts);
  if (ranks > 1 && options.device != "host") GTEST_SKIP() << "a process a GPU";
  options.config.cudagraph_mode = mode;
  options.config.tensor_parallel_size = ranks;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(drafts_of(served).wrong, 10);
  if (method == Method::kNgram) {
    EXPECT_GT(drafts_of(served).right, 5);
  }
  if (mode != "NONE") {
    EXPECT_GT(served.modes[mode == "PIECEWISE" ? "PIECEWISE" : "FULL"], 0);
  }
}

#if defined(REFRAIN_TSAN) || defined(REFRAIN_ASAN)  // the last has steps of all
const auto kHybridModes = ::testing::Values("FULL_AND_PIECEWISE");
#else
const auto kHybridModes = ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE");
#endif
#ifdef REFRAIN_TSAN  // one rank does what two do, and less
const auto kHybridRanks = ::testing::Values(2);
#else
const auto kHybridRanks = ::testing::Values(1, 2);
#endif
INSTANTIATE_TEST_SUITE_P(Modes, HybridDraftMode,
                         ::testing::Combine(kHybridModes, kHybridRanks,
                                            ::testing::Values(Method::kNgram, Method::kDraftModel),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return fmt::format(
                               "{}_tp{}_{}_k{}", std::get<0>(info.param), std::get<1>(info.param),
                               std::get<2>(info.param) == Method::kNgram ? "ngram" : "draft_model",
                               std::get<3>(info.param));
                         });

// What it costs is in the Program, and so in its plan of memory and its manifest.
TEST(HybridDraftsProgram, CG40ASlotKeepsAStateForEachTokenOfAVerification) {
  const auto config = load_model_config(model().directory());
  ASSERT_TRUE(config.has_value());
  worker::BuildOptions options;
  options.max_positions = 96;
  options.limits.step = {16, 4, 80, 16};
  options.limits.max_blocks = 24;
  options.limits.lookup_least = options.limits.lookup_most = 1;
  options.limits.history_cols = 96;
  for (const int32_t drafts : {1, 3}) {
    options.limits.num_drafts = drafts;
    const auto program = model().build()(*config, options);
    ASSERT_TRUE(program.has_value());
    const int64_t inner = model().shape().inner;
    EXPECT_EQ(program->states.back().slot.cols(), (1 + drafts) * inner);
    EXPECT_THAT(worker::print(*program), ::testing::HasSubstr(fmt::format(
                                             "slot {} float32 versions={}", inner, 1 + drafts)));
  }
}

class HybridDrafts : public ::testing::TestWithParam<Method> {};

TEST_P(HybridDrafts, CG40PreemptedRequestsBeginAnewInEveryGroup) {
  ServedOptions options = options_of(GetParam());
  // For one request of 96 tokens, and what its drafts may reach.
  options.num_blocks = {30, 30, 0};
  if (GetParam() == Method::kDraftModel) options.num_blocks.push_back(30);
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.scheduler->stats().preemptions, 0u);
  EXPECT_GT(drafts_of(served).wrong, 10);
}

// From a checkpoint a slot begins with the state that it stands for, at that state's place.
TEST_P(HybridDrafts, CG40APrefixIsTakenFromBlocksAndCheckpoints) {
  Served served(model().directory(), options_of(GetParam()));
  hybrid::expect_prefixes_found(served);
  EXPECT_GT(drafts_of(served).wrong, 0);
}

// A group is lost with two steps in flight; the next one goes on.
TEST_P(HybridDrafts, CG40RequestsOfALostGroupGoOnInTheNext) {
  Answers answers;
  std::vector<std::unique_ptr<Sequence>> left;
  {
    Served lost(model().directory(), options_of(GetParam()));
    add_all(lost);
    lost.run(12);
    left = lost.scheduler->release_all();
    answers = answers_of(lost);
    EXPECT_GT(drafts_of(lost).wrong, 0);
  }
  EXPECT_FALSE(left.empty());
  Served next(model().directory(), options_of(GetParam()));
  for (auto& sequence : left) next.add(std::move(sequence));
  next.run();
  const Answers rest = answers_of(next);
  for (size_t i = 0; i < answers.size(); ++i)
    answers[i].insert(answers[i].end(), rest[i].begin(), rest[i].end());
  EXPECT_EQ(answers, expected());
  EXPECT_GT(drafts_of(next).wrong, 0);
}

TEST_P(HybridDrafts, CG41AuditedStepsAgree) {
  ServedOptions options = options_of(GetParam());
  options.config.audit = true;
  options.audit_rate = 0.5;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.audited, 10);
}

TEST_P(HybridDrafts, CG27PoisonedPaddingReachesNoRow) {
  ServedOptions options = options_of(GetParam());
  options.poison = true;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
}

INSTANTIATE_TEST_SUITE_P(Methods, HybridDrafts,
                         ::testing::Values(Method::kNgram, Method::kDraftModel),
                         [](const auto& info) {
                           return info.param == Method::kNgram ? "ngram" : "draft_model";
                         });

}  // namespace
}  // namespace refrain::tests::hybrid_drafts
