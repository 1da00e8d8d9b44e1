// CG-40 with a draft model: rows give the tokens of a runner that decodes one by one, whatever the
// draft model says; a model that drafts for itself is always right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"

namespace refrain::tests::draft_model {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<std::vector<TokenId>>;

constexpr int32_t kDrafts = 3, kSteps = 6;
constexpr size_t kTokens = 14;
constexpr const char* kModes[] = {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY",
                                  "FULL_AND_PIECEWISE"};

const TinyModel& another() {
  static const TinyModel model({.heads = 2, .kv_heads = 1, .head_dim = 32, .seed = 8});
  return model;
}
// The model's first layer: it agrees now and then.
const TinyModel& cut() {
  static const TinyModel model({.layers = 1});
  return model;
}

SessionOptions options_of(const char* mode, const TinyModel* draft) {
  SessionOptions options;
  options.config.cudagraph_mode = mode;
  if (draft == nullptr) return options;
  options.config.num_speculative_tokens = kDrafts;
  options.draft = draft->directory();
  return options;
}

void add(const ipc::StepResult& result, Tokens& tokens) {
  for (size_t row = 0; row + 1 < result.token_offsets.size(); ++row) {
    tokens[row].insert(tokens[row].end(), result.tokens.begin() + result.token_offsets[row],
                       result.tokens.begin() + result.token_offsets[row + 1]);
  }
}

std::vector<Row> prompts() { return {{0, prompt(6, 0), 0}, {1, prompt(9, 1), 0}}; }

Tokens one_by_one(float temperature) {
  const auto session = started(options_of("NONE", nullptr));
  session->setup().temperature = temperature;
  Tokens tokens(2);
  add(session->run(prompts()), tokens);
  for (int32_t i = 0; tokens[0].size() < kTokens; ++i)
    add(session->run({{0, {kTokenOnDevice}, 6 + i}, {1, {kTokenOnDevice}, 9 + i}}), tokens);
  return tokens;
}

std::vector<Row> verification(int32_t step) {
  const std::vector<TokenId> drafts(1 + kDrafts, kTokenOnDevice);
  return {{0, drafts, 6 + step * (1 + kDrafts), true}, {1, drafts, 9 + step * (1 + kDrafts), true}};
}

struct Drafted {
  Tokens tokens = Tokens(2);
  int64_t drafted = 0, accepted = 0;
};

Drafted verify(const char* mode, const TinyModel& draft, float temperature, bool poison = false) {
  SessionOptions options = options_of(mode, &draft);
  options.poison_padding = poison;
  const auto session = started(options);
  session->setup().temperature = temperature;
  Drafted all;
  add(session->run(prompts()), all.tokens);
  for (int32_t step = 0; step < kSteps; ++step) {
    const ipc::StepResult result = session->run(verification(step));
    for (size_t row = 0; row < 2; ++row) {
      all.drafted += result.drafted.at(row);
      all.accepted += result.token_offsets[row + 1] - result.token_offsets[row] - 1;
    }
    add(result, all.tokens);
  }
  return all;
}

void expect_begin(const Tokens& got, const Tokens& expected, const std::string& where) {
  for (size_t row = 0; row < got.size(); ++row) {
    const auto count = static_cast<int>(std::min(got[row].size(), expected[row].size()));
    EXPECT_EQ(std::vector<TokenId>(got[row].begin(), got[row].begin() + count),
              std::vector<TokenId>(expected[row].begin(), expected[row].begin() + count))
        << where << " row " << row;
  }
}

TEST(DraftModel, CG40AModelThatDraftsForItselfIsAlwaysRight) {
  for (const float temperature : {0.0f, 1.0f}) {
    const Tokens expected = one_by_one(temperature);
    for (const char* mode : kModes) {
      const Drafted all = verify(mode, model(), temperature);
      EXPECT_EQ(all.drafted, 2 * kSteps * kDrafts) << mode;
      if (SessionOptions{}.device == "host") {
        EXPECT_EQ(all.accepted, all.drafted) << mode << " temperature " << temperature;
      }
      expect_begin(all.tokens, expected, mode);
    }
  }
}

TEST(DraftModel, CG40NoDraftChangesAToken) {
  for (const float temperature : {0.0f, 1.0f}) {
    const Tokens expected = one_by_one(temperature);
    for (const TinyModel* draft : {&another(), &cut()}) {
      for (const char* mode : kModes) {
        const Drafted all = verify(mode, *draft, temperature);
        EXPECT_EQ(all.drafted, 2 * kSteps * kDrafts) << mode;
        EXPECT_LT(all.accepted, all.drafted) << mode;
        expect_begin(all.tokens, expected, mode);
      }
    }
  }
}

TEST(DraftModel, CG27PoisonedPaddingReachesNoRow) {
  const Tokens expected = one_by_one(0.0f);
  for (const char* mode : {"PIECEWISE", "FULL"}) {
    const Drafted all = verify(mode, model(), 0.0f, true);
    EXPECT_EQ(all.accepted, all.drafted) << mode;
    expect_begin(all.tokens, expected, mode);
  }
}

TEST(DraftModel, CG39TwoStepsInFlightGiveWhatStepsAloneGive) {
  Tokens tokens[2] = {Tokens(2), Tokens(2)};
  for (const bool overlapped : {false, true}) {
    const auto session = started(options_of("FULL_AND_PIECEWISE", &cut()));
    Tokens& mine = tokens[overlapped ? 1 : 0];
    session->runner().submit(session->make_step(prompts()));
    for (int32_t step = 0; step < kSteps; ++step) {
      if (!overlapped) add(session->runner().wait(), mine);
      session->runner().submit(session->make_step(verification(step)));
      if (overlapped) add(session->runner().wait(), mine);
    }
    add(session->runner().wait(), mine);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

// A request that enters a slot drafts from its own tokens, whatever the slot had before; a prompt
// may come in chunks, beside others that verify.
TEST(DraftModel, CG40ChunksBesideRowsThatVerifyDraftRight) {
  const auto session = started(options_of("FULL_AND_PIECEWISE", &model()));
  Tokens tokens(2);
  add(session->run(prompts()), tokens);
  for (int32_t step = 0; step < 2; ++step) session->run(verification(step));
  const auto longer = prompt(20, 5);
  const std::vector<TokenId> drafts(1 + kDrafts, kTokenOnDevice);
  const std::vector<TokenId> head(longer.begin(), longer.begin() + 12);
  const std::vector<TokenId> tail(longer.begin() + 12, longer.end());
  ipc::Step step = session->make_step({{0, drafts, 6 + 2 * (1 + kDrafts), true}, {1, head, 0}});
  step.runs[0].rows.flags[1] = 0;
  session->runner().submit(step);
  EXPECT_EQ(session->runner().wait().tokens.size(), static_cast<size_t>(1 + kDrafts));
  session->run({{0, drafts, 6 + 3 * (1 + kDrafts), true}, {1, tail, 12}});
  for (int32_t i = 0; i < 3; ++i) {
    const ipc::StepResult result = session->run({{1, drafts, 20 + i * (1 + kDrafts), true}});
    EXPECT_EQ(result.drafted, std::vector<int32_t>{kDrafts});
    if (SessionOptions{}.device == "host") {
      EXPECT_EQ(result.tokens.size(), static_cast<size_t>(1 + kDrafts)) << "all were right";
    }
  }
}

TEST(DraftModel, IsRefusedWithAnotherVocabulary) {
  const TinyModel other({.vocab = 300});
  try {
    Session session(model().directory(), options_of("NONE", &other));
    FAIL() << "it was taken";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a vocabulary of 300 tokens, the model one of 259"));
  }
}

// CG-22: its graphs are captured and told of like those of the model.
TEST(DraftModel, CG22ItsGraphsAreInTheManifest) {
  const auto session = started(options_of("FULL_AND_PIECEWISE", &cut()));
  const auto of = [&](const std::string& mode) {
    return std::ranges::count(session->ready.manifest, mode, &ipc::ManifestEntry::mode);
  };
  EXPECT_GT(of("FULL"), 0);
  EXPECT_EQ(of("draft FULL"), of("FULL"));
  EXPECT_EQ(of("draft PIECEWISE"), of("PIECEWISE"));
}

}  // namespace
}  // namespace refrain::tests::draft_model
