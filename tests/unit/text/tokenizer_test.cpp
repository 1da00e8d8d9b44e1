#include "runtime/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/text/detokenizer.h"
#include "tests/unit/text/tiny_tokenizer.h"

namespace refrain::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                            bool special = false) {
  const auto ids = tokenizer.encode(text, special);
  EXPECT_TRUE(ids) << (ids ? "" : ids.error().message);
  return ids.value_or(std::vector<TokenId>{-1});
}

TEST(Tokenizer, MergesByRank) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_THAT(encode(tokenizer, "hello hello"), ElementsAre(259, 260));
  EXPECT_THAT(encode(tokenizer, "hell"), ElementsAre(258));
  EXPECT_THAT(encode(tokenizer, "ello"), ElementsAre('e', 257, 'o'));
  EXPECT_TRUE(encode(tokenizer, "").empty());
  EXPECT_EQ(tokenizer.vocab_size(), 263U);
}

TEST(Tokenizer, TakesWholePiecesFirstWhenMergesAreIgnored) {
  auto json = byte_level_json();
  json["model"]["vocab"]["ello"] = 300;  // no merge makes it
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode(load_tokenizer(json), "ello"), ElementsAre(300));
  json["model"]["ignore_merges"] = false;
  EXPECT_THAT(encode(load_tokenizer(json), "ello"), ElementsAre('e', 257, 'o'));
}

TEST(Tokenizer, FindsSpecialTokensBeforeAnythingElse) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_THAT(encode(tokenizer, "<s>hello</s>"), ElementsAre(261, 259, 262));
  EXPECT_TRUE(tokenizer.is_special(261));
  EXPECT_FALSE(tokenizer.is_special(259));
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, "<s>hello</s>"), true), "hello");
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, "<s>hello</s>"), false), "<s>hello</s>");
}

TEST(Tokenizer, StripsAndMatchesWholeWordsAsAddedTokensAsk) {
  auto json = byte_level_json();
  auto& added = json["added_tokens"];
  added[0]["lstrip"] = true;
  added[0]["rstrip"] = true;
  added[1]["single_word"] = true;
  added[1]["content"] = "end";
  const auto tokenizer = load_tokenizer(json);
  EXPECT_THAT(encode(tokenizer, "a \n<s>  b"), ElementsAre('a', 261, 'b'));
  EXPECT_THAT(encode(tokenizer, "end"), ElementsAre(262));
  EXPECT_THAT(encode(tokenizer, "bend"), ElementsAre('b', 'e', 'n', 'd'));
}

TEST(Tokenizer, PrefersTheLongestSpecialToken) {
  auto json = byte_level_json();
  json["added_tokens"][1]["content"] = "<s>x";
  EXPECT_THAT(encode(load_tokenizer(json), "<s>x<s>"), ElementsAre(262, 261));
}

TEST(Tokenizer, AddsWhatThePostProcessorSays) {
  auto json = byte_level_json();
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {261}}}}}}};
  const auto tokenizer = load_tokenizer(json);
  EXPECT_THAT(encode(tokenizer, "a", true), ElementsAre(261, 'a'));
  EXPECT_THAT(encode(tokenizer, "a", false), ElementsAre('a'));
}

TEST(Tokenizer, FollowsAddBosAndEosOfTheConfiguration) {
  const nlohmann::json config = {{"bos_token", "<s>"},
                                 {"eos_token", {{"content", "</s>"}}},
                                 {"add_bos_token", true},
                                 {"add_eos_token", true}};
  const auto tokenizer = load_tokenizer(byte_level_json(), config);
  EXPECT_THAT(encode(tokenizer, "a", true), ElementsAre(261, 'a', 262));
  EXPECT_EQ(tokenizer.special_tokens().eos, "</s>");
}

TEST(Tokenizer, ReadsBytesThatAreNotUtf8AsReplacementCharacters) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_EQ(encode(tokenizer,
                   "a\xFF\xE4\xBD"
                   "b"),
            encode(tokenizer, "a\uFFFD\uFFFDb"));
}

TEST(Tokenizer, FallsBackToBytes) {
  const auto tokenizer = load_tokenizer(byte_fallback_json());
  EXPECT_THAT(encode(tokenizer, "hi"), ElementsAre(261));
  EXPECT_THAT(encode(tokenizer, "é"), ElementsAre(257, 1 + 0xC3, 1 + 0xA9));
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, "hi é hi"), true), "hi é hi");
  EXPECT_EQ(tokenizer.token_bytes(1 + 0xC3), "\xC3");
  EXPECT_EQ(tokenizer.token_to_string(1 + 0xC3), "\uFFFD");
  EXPECT_EQ(tokenizer.token_bytes(261), " hi");
  EXPECT_EQ(tokenizer.token(261), "▁hi");
}

TEST(Tokenizer, IgnoresIdsOutsideTheVocabulary) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{-1, 259, 999999}, true), "hello");
  EXPECT_EQ(tokenizer.token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(999999), "");
  EXPECT_EQ(tokenizer.id_of("nope"), std::nullopt);
  EXPECT_EQ(tokenizer.id_of("</s>"), 262);
}

TEST(Tokenizer, EncodesTheSameFromManyThreadsAndTwice) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += " hello" + std::to_string(i * 7919);
  const auto expected = encode(tokenizer, text);
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) same[t] += *tokenizer.encode(text, false) == expected ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(same, ElementsAre(5, 5, 5, 5));
}

TEST(Detokenizer, NeverSplitsACharacter) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  IncrementalDetokenizer detokenizer(tokenizer);
  std::vector<std::string> pieces;
  for (const TokenId id : encode(tokenizer, "a😐é")) pieces.push_back(detokenizer.push(id));
  EXPECT_THAT(pieces, ElementsAre("a", "", "", "", "😐", "", "é"));
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, ReplacesWhatStaysUnfinished) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  IncrementalDetokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(0xE4), "");
  EXPECT_EQ(detokenizer.push('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(0xE4), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0xE4, 'a', 0xE4}, true), "\uFFFDa\uFFFD");
}

TEST(Detokenizer, KeepsTheLeadingSpaceOfTextThatContinuesAPrompt) {
  const auto tokenizer = load_tokenizer(byte_fallback_json());
  IncrementalDetokenizer whole(tokenizer);
  EXPECT_EQ(whole.push(261), "hi");
  EXPECT_EQ(whole.push(261), " hi");
  IncrementalDetokenizer rest(tokenizer, {.skip_special_tokens = true, .continues_text = true});
  EXPECT_EQ(rest.push(261), " hi");
  EXPECT_EQ(rest.push(261), " hi");
}

TEST(Detokenizer, ShowsSpecialTokensWhenAsked) {
  const auto tokenizer = load_tokenizer(byte_level_json());
  IncrementalDetokenizer shows(tokenizer, {.skip_special_tokens = false});
  IncrementalDetokenizer hides(tokenizer);
  EXPECT_EQ(shows.push(261), "<s>");
  EXPECT_EQ(hides.push(261), "");
}

}  // namespace
}  // namespace refrain::text
