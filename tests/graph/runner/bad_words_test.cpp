// bad_words on a worker: the last token of a sequence is masked where the others stand before it.
#include "worker/runner/bad_words.h"

#include <gmock/gmock.h>

#include "tests/graph/runner/session.h"

namespace refrain::tests {
namespace {

std::vector<TokenId> forbidden(const worker::BadWords& words) {
  std::vector<uint32_t> mask(2, ~0u);
  words.forbid(mask);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < 64; ++token)
    if (((mask[static_cast<size_t>(token) / 32] >> (token % 32)) & 1u) == 0)
      tokens.push_back(token);
  return tokens;
}

TEST(BadWords, TheLastTokenIsForbiddenWhereTheOthersStand) {
  ipc::SlotSetup setup;
  setup.bad_words = {1, 2, 40, -1, 2, 3, -1, 9, -1};
  worker::BadWords words(setup);
  EXPECT_EQ(forbidden(words), (std::vector<TokenId>{9}));
  words.accept(1);
  EXPECT_EQ(forbidden(words), (std::vector<TokenId>{9}));
  words.accept(2);
  EXPECT_EQ(forbidden(words), (std::vector<TokenId>{3, 9, 40}));
  words.accept(2);
  EXPECT_EQ(forbidden(words), (std::vector<TokenId>{3, 9}));
  for (TokenId token = 10; token < 20; ++token) words.accept(token);
  EXPECT_EQ(forbidden(words), (std::vector<TokenId>{9}));
}

TEST(BadWords, OutputFromBeforeAPreemptionCounts) {
  ipc::SlotSetup setup;
  setup.bad_words = {1, 2, 40, -1};
  setup.output_tokens = {7, 1, 2};
  EXPECT_EQ(forbidden(worker::BadWords(setup)), (std::vector<TokenId>{40}));
}

TEST(BadWords, ARowGivesAnotherTokenWhereOneWouldEndASequence) {
  static const TinyModel model;
  Session plain(model.directory(), SessionOptions{}), kept(model.directory(), SessionOptions{});
  plain.start();
  kept.start();
  std::vector<TokenId> free, bound;
  for (int step = 0; step < 3; ++step)
    free.push_back(
        plain
            .run({{0,
                   step == 0 ? std::vector<TokenId>{3, 4, 5} : std::vector<TokenId>{kTokenOnDevice},
                   step == 0 ? 0 : 2 + step}})
            .tokens[0]);
  kept.setup().bad_words = {free[0], free[1], -1};
  for (int step = 0; step < 2; ++step)
    bound.push_back(
        kept.run({{0,
                   step == 0 ? std::vector<TokenId>{3, 4, 5} : std::vector<TokenId>{kTokenOnDevice},
                   step == 0 ? 0 : 2 + step}})
            .tokens[0]);
  EXPECT_EQ(bound[0], free[0]);
  EXPECT_NE(bound[1], free[1]);
}

}  // namespace
}  // namespace refrain::tests
