// R-14 for tokenizer.json: what is broken, hostile or unknown is an error naming file and field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/json_reader.h"
#include "runtime/text/regex.h"
#include "runtime/text/regex_syntax.h"
#include "tests/unit/text/tiny_tokenizer.h"

namespace refrain::text {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string with(const char* pointer, const json& value) {
  json tokenizer = byte_level_json();
  tokenizer[json::json_pointer(pointer)] = value;
  return load_error(tokenizer);
}

TEST(TokenizerErrors, NameTheFieldAtFault) {
  EXPECT_THAT(with("/model/type", "Unigram"),
              HasSubstr("tokenizer.json: model has type 'Unigram'"));
  EXPECT_THAT(with("/model/merges/1", "a b c"), HasSubstr("model.merges[1] must be two tokens"));
  EXPECT_THAT(with("/model/merges/0", "q zz"), HasSubstr("model.merges[0] names 'zz'"));
  EXPECT_THAT(with("/model/vocab/x", -5), HasSubstr("model.vocab gives 'x' an id"));
  EXPECT_THAT(with("/model/vocab/xy", 4294967296), HasSubstr("model.vocab gives 'xy' an id"));
  EXPECT_THAT(with("/model/vocab/xy", 17), HasSubstr("gives id 17 to two tokens"));
  EXPECT_THAT(with("/model/vocab/xy", "1"), HasSubstr("not an integer"));
  EXPECT_THAT(with("/model/dropout", 0.5), HasSubstr("model.dropout"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(with("/model/ignore_merges", "yes"), HasSubstr("must be true or false"));
  EXPECT_THAT(with("/normalizer", {{"type", "Nmt"}}), HasSubstr("normalizer has type 'Nmt'"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(with("/decoder", {{"type", "CTC"}}), HasSubstr("decoder has type 'CTC'"));
  EXPECT_THAT(with("/post_processor", {{"type", "X"}}), HasSubstr("post_processor has type 'X'"));
  EXPECT_THAT(with("/added_tokens/0/content", ""), HasSubstr("added_tokens[0]"));
  EXPECT_THAT(with("/added_tokens/0/id", -1), HasSubstr("added_tokens[0].id must be an integer"));
  EXPECT_THAT(with("/added_tokens", 3), HasSubstr("added_tokens must be an array"));
  json tokenizer = byte_level_json();
  tokenizer.erase("model");
  EXPECT_THAT(load_error(tokenizer), HasSubstr("tokenizer.json: model is missing"));
  EXPECT_THAT(load_error(byte_level_json(), {{"bos_token", 3}}),
              HasSubstr("tokenizer_config.json: bos_token must be a string"));
}

TEST(TokenizerErrors, NameARegexThatCannotBeTakenOver) {
  const auto split = [](const char* pattern) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  };
  EXPECT_THAT(with("/pre_tokenizer", split("(a)\\1")),
              AllOf(HasSubstr("pre_tokenizer.pattern.Regex"), HasSubstr("'\\1'")));
  EXPECT_THAT(with("/pre_tokenizer", split("(?<n>a)")), HasSubstr("group '(?<n"));
  EXPECT_THAT(with("/pre_tokenizer", split("[a[bc]]")), HasSubstr("a class inside a class"));
  EXPECT_THAT(with("/pre_tokenizer", split("(a")), HasSubstr("without its ')'"));
  EXPECT_THAT(with("/pre_tokenizer", split("\\p{Nonsense}")), HasSubstr("does not compile"));
}

TEST(TokenizerErrors, SurviveBrokenFiles) {
  const std::string whole = byte_level_json().dump();
  for (size_t size = 0; size < whole.size(); size += 97)
    EXPECT_FALSE(Tokenizer::from_json({whole.substr(0, size), "", ""})) << size;
  EXPECT_FALSE(Tokenizer::from_json({std::string(100000, '['), "", ""}));
  EXPECT_FALSE(Tokenizer::from_json({"[]", "", ""}));
  EXPECT_FALSE(Tokenizer::from_json({"null", "", ""}));
}

TEST(TokenizerErrors, DoNotRepeatBytesThatAreNoUtf8) {
  const auto broken = Tokenizer::from_json({"{\"a\": \"\xff\"}", "", ""});
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, HasSubstr("tokenizer.json: not valid JSON"));
  EXPECT_THAT(broken.error().message, Not(HasSubstr("\xff")));
}

TEST(TokenizerErrors, CapTheDepthOfJson) {
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  const auto result = parse_json(deep, "x.json");
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("x.json: nested deeper than 64 levels"));
  EXPECT_TRUE(parse_json(deep.substr(1, 128), "x.json"));
  EXPECT_TRUE(parse_json("\"" + std::string(1000, '[') + "\"", "x.json"));
}

TEST(TokenizerErrors, RefuseAStretchThatCannotBeSplit) {
  json tokenizer = byte_level_json();
  const auto ids = load_tokenizer(tokenizer).encode(std::string((4U << 20) + 1, 'a'), false);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kTooLarge);
}

TEST(TokenizerErrors, EndARegexThatBacktracksForever) {
  auto regex = Regex::compile("(?:a+)+[cd]");
  ASSERT_TRUE(regex) << regex.error().message;
  RegexScratch scratch;
  Regex::Match match;
  const auto found = regex->find(std::string(5000, 'a') + "b", 0, scratch, match);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("too hard"));
}

TEST(RegexSyntax, ReadsTheDialectOfTokenizers) {
  const auto matches = [](const char* pattern, std::string_view text) {
    auto regex = Regex::compile(pattern);
    EXPECT_TRUE(regex) << pattern;
    RegexScratch scratch;
    Regex::Match match;
    if (!regex || !*regex->find(text, 0, scratch, match)) return std::string("-");
    return std::string(text.substr(match.begin, match.end - match.begin));
  };
  EXPECT_EQ(matches("\\p{N}{1,3}+", "12345"), "12345");  // a repeat, not possessive
  EXPECT_EQ(matches("\\h+", "xyzcafe"), "cafe");         // hex digits, not spaces
  EXPECT_EQ(matches("\\s", "\u180e"), "-");              // no white space since Unicode 6.3
  EXPECT_EQ(matches("\\w+", "e\u0301x"), "e\u0301x");    // marks belong to words
  EXPECT_EQ(matches("^b", "a\nb"), "b");                 // every line
  EXPECT_EQ(matches("[\\p{L}&&[^\\p{Han}]]+", "你a"), "a");
  EXPECT_EQ(matches("(?i:'S)", "'\u017f"), "'\u017f");  // long s folds to s
  EXPECT_EQ(matches("a{,2}b", "aab"), "aab");
  EXPECT_EQ(matches("a{x}", "a{x}"), "a{x}");
}

nlohmann::json exploding_json() {
  auto json = byte_level_json();
  nlohmann::json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", nlohmann::json(4, step)}};
  return json;
}

TEST(TokenizerLimits, ANormalizerThatExplodesIsAnError_R25) {
  const auto ids = load_tokenizer(exploding_json()).encode("aaaaaaaaaa", false);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(ids.error().message, testing::HasSubstr("normalizer"));
}

TEST(TokenizerLimits, ANormalizerHasAtMost64Steps_R25) {
  auto json = byte_level_json();
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", nlohmann::json(65, {{"type", "Lowercase"}})}};
  EXPECT_THAT(load_error(json), testing::HasSubstr("more than 64 steps"));
}

TEST(TokenizerLimits, BytesAreRefusedFirstAndTokensAtTheFirstTooMany_R25) {
  const Tokenizer tokenizer = load_tokenizer(byte_level_json());
  TextLimits limits;
  limits.max_bytes = 10;
  EXPECT_TRUE(tokenizer.encode("0123456789", false, limits));
  auto ids = tokenizer.encode("01234567890", false, limits);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().field, "prompt");
  EXPECT_THAT(ids.error().message, testing::HasSubstr("11 bytes"));
  limits = {};
  limits.max_tokens = 4;
  EXPECT_TRUE(tokenizer.encode("0123", false, limits));
  ids = tokenizer.encode("01234", false, limits);
  ASSERT_FALSE(ids);
  EXPECT_THAT(ids.error().message, testing::HasSubstr("more than 4 tokens"));
}

TEST(TokenizerLimits, TheStopFlagEndsTheWork_R25) {
  const std::atomic<bool> stop = true;
  TextLimits limits;
  limits.stop = &stop;
  const auto ids = load_tokenizer(byte_level_json()).encode("some text", false, limits);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace refrain::text
