// CG-35, CG-39, CG-40: rows that verify give the tokens of a runner that decodes one by one, in
// every mode, whether their progress is known to the host or not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

constexpr int32_t kDrafts = 3, kSteps = 6;
constexpr size_t kTokens = 14;

SessionOptions options_of(const char* mode, int32_t drafts) {
  SessionOptions options;
  options.config.cudagraph_mode = mode;
  options.config.num_speculative_tokens = drafts;
  options.config.prompt_lookup_max = 3;
  return options;
}

// A few tokens alone are allowed, so that they come again.
void set_up(Session& session) {
  session.setup().has_allowed_tokens = true;
  session.setup().allowed_tokens = {5, 6, 7};
}

using Tokens = std::vector<std::vector<TokenId>>;

void add(const ipc::StepResult& result, Tokens& tokens) {
  for (size_t row = 0; row + 1 < result.token_offsets.size(); ++row) {
    tokens[row].insert(tokens[row].end(), result.tokens.begin() + result.token_offsets[row],
                       result.tokens.begin() + result.token_offsets[row + 1]);
  }
}

std::vector<Row> prompts() { return {{0, prompt(6, 0), 0}, {1, prompt(9, 1), 0}}; }

Tokens one_by_one(Session& session) {
  set_up(session);
  Tokens tokens(2);
  add(session.run(prompts()), tokens);
  for (int32_t i = 0; tokens[0].size() < kTokens; ++i)
    add(session.run({{0, {kTokenOnDevice}, 6 + i}, {1, {kTokenOnDevice}, 9 + i}}), tokens);
  return tokens;
}

// Rows of 1 + kDrafts tokens, planned by the most that came before: as the device alone knows it.
std::vector<Row> verification(int32_t step) {
  const std::vector<TokenId> drafts(1 + kDrafts, kTokenOnDevice);
  return {{0, drafts, 6 + step * (1 + kDrafts), true}, {1, drafts, 9 + step * (1 + kDrafts), true}};
}

TEST(Speculation, CG40EveryModeGivesTheTokensOfDecodingOneByOneInFewerSteps) {
  const TinyModel model;
  Session plain(model.directory(), options_of("NONE", 0));
  plain.start();
  const Tokens expected = one_by_one(plain);
  for (const char* mode : {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"}) {
    Session session(model.directory(), options_of(mode, kDrafts));
    session.start();
    set_up(session);
    Tokens tokens(2);
    add(session.run(prompts()), tokens);
    int64_t drafted = 0;
    for (int32_t step = 0; step < kSteps; ++step) {
      const ipc::StepResult result = session.run(verification(step));
      ASSERT_THAT(result.drafted, ::testing::SizeIs(2));
      drafted += result.drafted[0];
      EXPECT_EQ(result.key_tokens, 2 * (1 + kDrafts)) << mode;
      EXPECT_EQ(result.key_uniform, std::string(mode).starts_with("FULL_")) << mode;
      add(result, tokens);
    }
    EXPECT_GT(drafted, 0) << mode;
    EXPECT_GT(tokens[0].size() + tokens[1].size(), 2 * (1 + kSteps)) << "no draft was right";
    for (size_t row = 0; row < 2; ++row) {
      const size_t count = std::min(tokens[row].size(), expected[row].size());
      tokens[row].resize(count);
      EXPECT_EQ(tokens[row], std::vector<TokenId>(expected[row].begin(),
                                                  expected[row].begin() + static_cast<int>(count)))
          << mode << " row " << row;
    }
  }
}

TEST(Speculation, CG39TwoStepsInFlightGiveWhatStepsAloneGive) {
  const TinyModel model;
  Tokens tokens[2] = {Tokens(2), Tokens(2)};
  for (const bool overlapped : {false, true}) {
    Session session(model.directory(), options_of("FULL_AND_PIECEWISE", kDrafts));
    session.start();
    set_up(session);
    Tokens& mine = tokens[overlapped ? 1 : 0];
    session.runner().submit(session.make_step(prompts()));
    for (int32_t step = 0; step < kSteps; ++step) {
      if (!overlapped) add(session.runner().wait(), mine);
      session.runner().submit(session.make_step(verification(step)));
      if (overlapped) add(session.runner().wait(), mine);
    }
    add(session.runner().wait(), mine);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

}  // namespace
}  // namespace refrain::tests
