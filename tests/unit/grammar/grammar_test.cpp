#include "runtime/grammar/grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/grammar/grammar_trial.h"
#include "runtime/grammar/schema_check.h"
#include "runtime/server/structured_output.h"

namespace refrain {
namespace {

constexpr TokenId kEnd = 0;

class Grammar : public testing::Test {
 protected:
  Grammar()
      : tokenizer_(*text::Tokenizer::load("tests/fixtures/models/llama-bias-f32")),
        vocab_size_(static_cast<int64_t>(tokenizer_.vocab_size()) + 5),
        compiler_(GrammarCompiler::create(tokenizer_, vocab_size_, {kEnd}).value()) {}

  std::vector<uint32_t> mask(GrammarMatcher& matcher) const {
    std::vector<uint32_t> bits(static_cast<size_t>(vocab_size_ + 31) / 32);
    matcher.fill(bits);
    return bits;
  }
  static bool allows(const std::vector<uint32_t>& mask, TokenId token) {
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
  }
  // Takes the text token by token, each of which must be in its mask.
  void take(GrammarMatcher& matcher, const std::string& text) const {
    const std::vector<TokenId> tokens = *tokenizer_.encode(text, false);
    for (const TokenId token : tokens) {
      ASSERT_TRUE(allows(mask(matcher), token)) << tokenizer_.token_to_string(token);
      ASSERT_TRUE(matcher.accept(token));
    }
  }

  text::Tokenizer tokenizer_;
  int64_t vocab_size_;
  GrammarCompiler compiler_;
};

TEST_F(Grammar, AllowsWhatTheSchemaSaysAndItsEndOnlyWhenItIsComplete) {
  auto matcher = compiler_.compile(
      R"(json_schema:{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  ASSERT_TRUE(matcher) << matcher.error().message;
  take(**matcher, R"({"a": 4)");
  EXPECT_FALSE(allows(mask(**matcher), kEnd));
  take(**matcher, "}");
  EXPECT_TRUE(allows(mask(**matcher), kEnd));
  EXPECT_TRUE((*matcher)->accept(kEnd));
  EXPECT_TRUE(allows(mask(**matcher), 1)) << "an answer that has ended is bound by nothing";
}

TEST_F(Grammar, AMaskIsTheTokensThatTheMatcherTakes) {
  auto matcher = compiler_.compile("regex:[a-c]{2}x");
  ASSERT_TRUE(matcher);
  take(**matcher, "a");
  const auto bits = mask(**matcher);
  size_t allowed = 0;
  for (TokenId token = 0; token < vocab_size_; ++token) {
    auto fresh = compiler_.compile("regex:[a-c]{2}x");
    ASSERT_TRUE((*fresh)->accept(tokenizer_.encode("a", false)->front()));
    EXPECT_EQ((*fresh)->accept(token), allows(bits, token)) << token;
    allowed += allows(bits, token) ? 1 : 0;
  }
  EXPECT_GT(allowed, 0u);
}

// They would have to be escaped, and JSON's readers refuse them (tools/xgrammar mends it).
TEST_F(Grammar, TellsForcedTextAndTakesTokensBack) {
  const auto compiled = *compiler_.compile(R"(regex:[ab](zebra|zen)x)");
  GrammarMatcher& matcher = *compiled;
  EXPECT_EQ(matcher.forced_text(), "");
  take(matcher, "a");
  EXPECT_EQ(matcher.forced_text(), "ze");
  const auto before = mask(matcher);
  take(matcher, "z");
  take(matcher, "e");
  EXPECT_EQ(matcher.forced_text(), "");
  take(matcher, "n");
  EXPECT_EQ(matcher.forced_text(), "x");
  matcher.roll_back(3);
  EXPECT_EQ(mask(matcher), before);
  take(matcher, "zenx");
  ASSERT_TRUE(matcher.accept(kEnd));
  EXPECT_EQ(matcher.forced_text(), "");
}

TEST_F(Grammar, AStringOfSomeLengthHasNoControlCharacters) {
  for (const char* schema :
       {R"({"type":"string","maxLength":5})", R"({"type":"string","minLength":1})"}) {
    auto matcher = compiler_.compile(std::string("json_schema:") + schema);
    ASSERT_TRUE(matcher);
    take(**matcher, "\"a");
    for (const char control : {'\t', '\n', '\x01', '\x1f'}) {
      const std::vector<TokenId> token = *tokenizer_.encode(std::string(1, control), false);
      EXPECT_FALSE(allows(mask(**matcher), token.front())) << int{control};
    }
    take(**matcher, "\xC3\xA9 \"");
    EXPECT_TRUE(allows(mask(**matcher), kEnd));
  }
}

TEST_F(Grammar, SaysWhatIsWrongWithASource) {
  EXPECT_FALSE(compiler_.compile("ebnf:root ::= other"));
  EXPECT_FALSE(compiler_.compile("regex:(a"));
  EXPECT_FALSE(compiler_.compile(R"(json_schema:{"type":"nothing"})"));
  EXPECT_FALSE(compiler_.compile("a source without a kind"));
}

TEST_F(Grammar, ATrialRefusesWhatIsSlowToFollowAndWhatNoAnswerEnds) {
  const auto tried = [&](const char* source) {
    const Status status = try_grammar(compiler_, source, vocab_size_, {kEnd});
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(tried(R"(json_schema:{"type":"object"})"), "");
  EXPECT_EQ(tried("regex:[a-c]{2}x"), "");
  EXPECT_EQ(tried(R"(ebnf:root ::= "a" root)"), "") << "max_tokens ends such an answer";
  EXPECT_NE(tried("regex:((((a{1,999}){1,999}){1,999}){1,999})").find("ms to say what may follow"),
            std::string::npos);
  EXPECT_NE(tried(R"(json_schema:{"$ref":"#"})").find("cannot go on and not end"),
            std::string::npos);
  EXPECT_FALSE(try_grammar(compiler_, "regex:(a", vocab_size_, {kEnd}));
}

std::string keyword_of(const char* schema) {
  return unsupported_keyword(nlohmann::json::parse(schema));
}

TEST(SchemaCheck, NamesWhatNoGrammarIsMadeOf) {
  EXPECT_EQ(keyword_of(R"({"type":"array","uniqueItems":true})"), "uniqueItems");
  EXPECT_EQ(keyword_of(R"({"properties":{"a":{"not":{}}}})"), "not");
  EXPECT_EQ(keyword_of(R"({"items":{"anyOf":[{"if":{}}]}})"), "if");
  EXPECT_EQ(keyword_of(R"({"$defs":{"x":{"contains":1}},"type":"object"})"), "contains");
  EXPECT_EQ(keyword_of(R"({"anyOf":[{}],"minLength":2})"), "minLength beside anyOf");
  EXPECT_EQ(keyword_of(R"({"type":"string","format":"colour"})"), "format \"colour\"");
}

// The library says nothing of these, and makes a grammar that lets wrong answers through.
TEST(SchemaCheck, NamesWhatIsLeftOutWhereItStands) {
  for (const char* name : {"minLength", "maximum", "required", "minItems", "patternProperties"})
    EXPECT_EQ(keyword_of(fmt::format(R"({{"{}":2}})", name).c_str()),
              fmt::format("{} without type", name));
  EXPECT_EQ(keyword_of(R"({"properties":{},"minLength":2})"), "");
  EXPECT_EQ(keyword_of(R"({"items":{},"minItems":2})"), "");
  EXPECT_EQ(keyword_of(R"({"type":"object","propertyNames":{"pattern":"a"}})"), "");
  EXPECT_EQ(keyword_of(R"({"anyOf":[]})"), "anyOf of nothing");
  EXPECT_EQ(keyword_of(R"({"items":{"type":[]}})"), "type of nothing");
  EXPECT_EQ(keyword_of(R"({"type":"string","enum":["a",3]})"), "type beside enum");
  EXPECT_EQ(keyword_of(R"({"type":["integer","null"],"const":2.5})"), "type beside const");
  EXPECT_EQ(keyword_of(R"({"type":["integer","null"],"enum":[2,2.0,null]})"), "");
  EXPECT_EQ(keyword_of(R"({"type":"object","anyOf":[{"type":"object"},{"type":"null"}]})"),
            "type beside anyOf");
  EXPECT_EQ(keyword_of(R"({"type":"object","oneOf":[{"type":"object"}]})"), "");
  EXPECT_EQ(keyword_of(R"({"type":"object","$ref":"#"})"), "type beside $ref");
}

TEST(SchemaCheck, NamesWhatAGrammarCannotKnowOfMembers) {
  const auto of = [](const std::string& rest) {
    return keyword_of((R"({"type":"object",)" + rest + "}").c_str());
  };
  const std::string a = R"("properties":{"a":{}})";
  const std::string pattern = R"("patternProperties":{"^a":{}})";
  EXPECT_EQ(of(a + "," + pattern), "patternProperties beside properties");
  EXPECT_EQ(of(a + R"(,"propertyNames":{"maxLength":2})"), "propertyNames beside properties");
  EXPECT_EQ(of(pattern + R"(,"propertyNames":{})"), "propertyNames beside patternProperties");
  EXPECT_EQ(of(R"("patternProperties":{"^a":{},"b":{}})"), "patternProperties of several patterns");
  EXPECT_EQ(of(a + R"(,"required":["a","z"])"), "required \"z\" without its property");
  for (const std::string& open :
       {pattern, std::string(R"("propertyNames":{})"), std::string(R"("title":"any")"),
        a + R"(,"additionalProperties":true)", a + R"(,"unevaluatedProperties":{})"}) {
    EXPECT_EQ(of(open + R"(,"minProperties":2)"), "minProperties of members without names") << open;
    EXPECT_EQ(of(open + R"(,"minProperties":1)"), "") << open;
  }
  const std::string both = R"("properties":{"a":{},"b":{}},"minProperties":2)";
  EXPECT_EQ(of(both), "");
  EXPECT_EQ(of(both + R"(,"additionalProperties":{},"required":["a","b"])"), "");
}

TEST(SchemaCheck, NamesOfPropertiesAndValuesAreNoKeywords) {
  EXPECT_EQ(keyword_of(R"({"properties":{"not":{"type":"string"}},"default":{"if":1}})"), "");
  EXPECT_EQ(keyword_of(R"({"enum":[{"not":1}],"title":"t","x-own":{"not":1}})"), "");
}

std::string source_of(const char* body) {
  const auto source = structured_output_of(OrderedJson::parse(body));
  return source ? *source : "refused: " + source.error().field;
}

TEST(StructuredOutput, ReadsEveryNameOfTheFields) {
  EXPECT_EQ(source_of(R"({"response_format":{"type":"text"}})"), "");
  EXPECT_EQ(source_of(R"({"response_format":{"type":"json_object"}})"),
            R"(json_schema:{"type":"object"})");
  EXPECT_EQ(source_of(R"({"response_format":{"type":"json_schema","json_schema":
                          {"name":"n","schema":{"type":"null","title":"a"}}}})"),
            R"(json_schema:{"type":"null","title":"a"})");
  EXPECT_EQ(source_of(R"({"structured_outputs":{"regex":"a+"}})"), "regex:a+");
  EXPECT_EQ(source_of(R"({"structured_outputs":{"choice":["a","b\"c"]}})"),
            R"(ebnf:root ::= "a" | "b\"c")");
  EXPECT_EQ(source_of(R"({"guided_json":"{\"type\":\"null\"}"})"),
            R"(json_schema:{"type":"null"})");
  EXPECT_EQ(source_of(R"({"guided_grammar":"root ::= \"a\""})"), "ebnf:root ::= \"a\"");
}

// Tokens of byte 'a' and of the marks that are given, from 1 on.
text::Tokenizer with_marks(const std::vector<std::string>& marks) {
  nlohmann::json json = {
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", nlohmann::json::array()}}},
      {"added_tokens", nlohmann::json::array()}};
  for (const std::string& mark : marks)
    json["added_tokens"].push_back(
        {{"id", json["added_tokens"].size() + 1}, {"content", mark}, {"special", false}});
  return *text::Tokenizer::from_json({json.dump(), "", ""});
}

TEST(StructuredOutput, BeginsBehindTheReasoningThatThePromptLeavesOpen) {
  using enum text::ThinkingStart;
  const text::Tokenizer marks = with_marks({"<think>", "</think>"}), none = with_marks({});
  const auto begin = [](const char* parser, text::ThinkingStart start,
                        const text::Tokenizer& tokenizer) {
    SamplingParams sampling;
    const Status begun = begin_behind_reasoning({"", parser}, start, tokenizer, sampling);
    EXPECT_TRUE(begun) << begun.error().message;
    return std::pair(sampling.reasoning_begin, sampling.reasoning_end);
  };
  using Ids = std::vector<TokenId>;
  const std::pair<TokenId, Ids> at_once = {-1, {}}, behind = {-1, {2}}, either = {1, {2}};
  EXPECT_EQ(begin("", kInside, marks), at_once);
  EXPECT_EQ(begin("qwen3", kClosed, marks), at_once);
  EXPECT_EQ(begin("qwen3", kInside, marks), behind);
  EXPECT_EQ(begin("qwen3", kUnsaid, marks), either);
  EXPECT_EQ(begin("qwen3", kUnsaid, none), at_once);
  EXPECT_EQ(begin("deepseek_r1", kUnsaid, marks), behind);
  EXPECT_EQ(begin("deepseek_r1", kClosed, none), at_once);
  const text::Tokenizer harmony = with_marks({"<|channel|>", "<|message|>", "final"});
  EXPECT_EQ(begin("openai_gptoss", kUnsaid, harmony), std::pair(-1, Ids({1, 3, -1, 2})));
  for (const auto& [parser, start] :
       {std::pair("qwen3", kInside), std::pair("deepseek_r1", kUnsaid),
        std::pair("openai_gptoss", kUnsaid)}) {
    SamplingParams sampling;
    const Status refused = begin_behind_reasoning({"", parser}, start, none, sampling);
    ASSERT_FALSE(refused) << parser;
    EXPECT_EQ(refused.error().field, "response_format");
    EXPECT_THAT(refused.error().message, testing::HasSubstr("no such token"));
  }
}

TEST(StructuredOutput, RefusesWithTheFieldsName) {
  EXPECT_EQ(source_of(R"({"guided_regex":"a","guided_json":{}})"), "refused: guided_regex");
  EXPECT_EQ(source_of(R"({"structured_outputs":{}})"), "refused: structured_outputs");
  EXPECT_EQ(source_of(R"({"structured_outputs":{"structural_tag":"x"}})"),
            "refused: structured_outputs");
  EXPECT_EQ(source_of(R"({"response_format":{"type":"xml"}})"), "refused: response_format");
  EXPECT_EQ(source_of(R"({"guided_json":{"not":{}}})"), "refused: guided_json");
  const std::string large = "{\"guided_regex\":\"" + std::string(kMaxGrammarBytes + 1, 'a') + "\"}";
  EXPECT_EQ(source_of(large.c_str()), "refused: guided_regex");
}

TEST(StructuredOutput, AForcedCallHoldsTheToolsParameters) {
  const auto tools = OrderedJson::parse(
      R"([{"function":{"name":"a","parameters":{"type":"object","$defs":{"x":{"type":"null"}}}}},
          {"function":{"name":"b"}}])");
  const auto any = forced_tool_call(tools, "");
  ASSERT_TRUE(any);
  EXPECT_NE(any->find(R"({"const":"b"})"), std::string::npos);
  EXPECT_NE(any->find(R"("$defs":{"x")"), std::string::npos);
  EXPECT_EQ(forced_tool_call(tools, "b")->find(R"({"const":"a"})"), std::string::npos);
  EXPECT_FALSE(forced_tool_call(tools, "c"));
}

}  // namespace
}  // namespace refrain
