// Prompt tokens are scored on the worker (R-22, CG-13): as likely as the sampled ones were,
// whatever the chunks, in steps without graphs.
#include <gmock/gmock.h>

#include "runtime/base/check.h"
#include "tests/graph/runner/session.h"

namespace refrain::tests {
namespace {

using ::testing::SizeIs;

std::unique_ptr<Session> scoring_session() {
  static const TinyModel model;
  auto session = std::make_unique<Session>(model.directory(), SessionOptions{});
  session->start();
  return session;
}

std::vector<TokenId> scored_prompt() {
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 23; ++i) tokens.push_back((i * 7 + 3) % 40);
  return tokens;
}

ipc::StepResult run_scored(Session& session, const std::vector<Row>& rows, size_t of,
                           const std::vector<TokenId>& tokens, int32_t num_top) {
  ipc::Step step = session.make_step(rows);
  for (ipc::SlotSetup& setup : step.setups) {
    setup.num_prompt_logprobs = num_top;
    setup.prompt_len = static_cast<int32_t>(tokens.size());
  }
  step.allowed_modes = 1;
  ipc::Rows& run = step.runs.front().rows;
  run.flags[of] |= ipc::kScores;
  const auto end = static_cast<size_t>(run.computed[of] + run.num_tokens[of]);
  run.next_tokens = {end < tokens.size() ? tokens[end] : -1};
  session.runner().submit(step);
  return session.runner().wait();
}

TEST(PromptScores, ChunksTellWhatTheWholePromptTells) {
  const std::vector<TokenId> tokens = scored_prompt();
  const auto whole = scoring_session(), parts = scoring_session();
  const ipc::PromptScores all = run_scored(*whole, {{0, tokens, 0}}, 0, tokens, 3).prompt;
  ASSERT_THAT(all.logprobs, SizeIs(tokens.size() - 1));
  ASSERT_THAT(all.top_tokens, SizeIs(3 * all.logprobs.size()));
  ipc::PromptScores told;
  for (const auto& [from, to] : {std::pair{0, 9}, {9, 10}, {10, 22}, {22, 23}}) {
    const Row row{0, {tokens.begin() + from, tokens.begin() + to}, from};
    const ipc::PromptScores part = run_scored(*parts, {row}, 0, tokens, 3).prompt;
    told.logprobs.insert(told.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
    told.ranks.insert(told.ranks.end(), part.ranks.begin(), part.ranks.end());
    told.top_tokens.insert(told.top_tokens.end(), part.top_tokens.begin(), part.top_tokens.end());
  }
  EXPECT_EQ(told.ranks, all.ranks);
  EXPECT_EQ(told.top_tokens, all.top_tokens);
  for (size_t i = 0; i < all.logprobs.size(); ++i)
    EXPECT_NEAR(told.logprobs[i], all.logprobs[i], 1e-4) << i;
}

TEST(PromptScores, AreTheLogprobsThatSamplingTells) {
  const std::vector<TokenId> tokens = scored_prompt();
  const auto session = scoring_session();
  const auto reference = scoring_session();
  const ipc::PromptScores told =
      run_scored(*session, {{1, {5, 6, 7}, 0}, {0, tokens, 0}}, 1, tokens, 2).prompt;
  for (size_t length = 1; length + 1 < tokens.size(); length += 5) {
    ipc::Step step =
        reference->make_step({{static_cast<SlotId>(length / 5),
                               {tokens.begin(), tokens.begin() + static_cast<int>(length)},
                               0}});
    step.setups.front().num_logprobs = 2;
    reference->runner().submit(step);
    const ipc::StepResult sampled = reference->runner().wait();
    const auto first = static_cast<size_t>(told.top_offsets[length - 1]);
    EXPECT_EQ(told.top_tokens[first], sampled.top_tokens[0]);
    EXPECT_NEAR(told.top_logprobs[first], sampled.top_logprobs[0], 1e-4);
    EXPECT_NEAR(told.top_logprobs[first + 1], sampled.top_logprobs[1], 1e-4);
  }
}

TEST(PromptScores, CG13AStepThatScoresRunsWithoutItsGraphAndTheNextWithIt) {
  const auto session = scoring_session();
  const std::vector<TokenId> tokens(8, 3);
  EXPECT_EQ(run_scored(*session, {{0, tokens, 0}}, 0, tokens, 0).mode, ipc::RuntimeMode::kNone);
  const ipc::StepResult next = session->run({{1, tokens, 0}});
  EXPECT_NE(next.mode, ipc::RuntimeMode::kNone);
  EXPECT_THAT(next.prompt.logprobs, SizeIs(0));
}

TEST(PromptScores, AStepThatLacksWhatItScoresIsAMistake) {
  const auto session = scoring_session();
  const std::vector<TokenId> tokens = {1, 2, 3};
  ipc::Step step = session->make_step({{0, tokens, 0}});
  step.allowed_modes = 1;
  step.runs.front().rows.flags[0] |= ipc::kScores;
  EXPECT_THROW(session->runner().submit(step), FatalError);
}

}  // namespace
}  // namespace refrain::tests
