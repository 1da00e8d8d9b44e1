#include "runtime/grammar/automata.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/grammar/grammar.h"

namespace refrain {
namespace {

TEST(Automata, LengthsOfStringsBecomePatternsWhereSchemasStand) {
  const auto of = with_patterns_for_lengths;
  EXPECT_EQ(of(R"({"type":"string","maxLength":5,"title":"t"})"),
            R"({"type":"string","title":"t","pattern":"^.{0,5}$"})");
  EXPECT_EQ(of(R"({"type":["string","null"],"minLength":2,"maxLength":128})"),
            R"({"type":["string","null"],"pattern":"^.{2,128}$"})");
  EXPECT_EQ(of(R"({"type":"string","minLength":3})"), R"({"type":"string","pattern":"^.{3,}$"})");
  EXPECT_EQ(of(R"({"type":"string","maxLength":129})"),
            R"({"anyOf":[{"type":"string","pattern":"^.{0,127}$"},)"
            R"({"type":"string","minLength":128,"maxLength":129}]})");
  const std::string inner = R"({"type":"string","maxLength":1})";
  const std::string outer = R"({"type":"string","pattern":"^.{0,1}$"})";
  for (const char* place :
       {R"({{"properties":{{"maxLength":{}}}}})", R"({{"$defs":{{"a":{}}}}})",
        R"({{"items":{{"anyOf":[{{}},{}]}}}})", R"({{"prefixItems":[{}]}})",
        R"({{"additionalProperties":{}}})", R"({{"patternProperties":{{"a":{}}}}})"})
    EXPECT_EQ(of(fmt::format(fmt::runtime(place), inner)), fmt::format(fmt::runtime(place), outer));
  EXPECT_EQ(of(R"({"propertyNames":{"maxLength":1}})"), R"({"propertyNames":)" + outer + "}");
}

TEST(Automata, LeaveWhatIsNoLengthOrNotTheirs) {
  for (const char* schema :
       {R"({"type":"string","minLength":3,"maxLength":2})", R"({"type":"string","maxLength":-1})",
        R"({"type":"string","maxLength":2.0})", R"({"type":"string","minLength":128})",
        R"({"type":["string","null"],"maxLength":129})", R"({"type":"object","maxLength":2})",
        R"({"const":{"type":"string","maxLength":2}})", R"({"maxLength":2})",
        R"({"type":"string","maxLength":2,"format":"date"})", R"({"maxLength)",
        R"({"default":{"type":"string","maxLength":2},"n":12345678901234567890123})"})
    EXPECT_EQ(with_patterns_for_lengths(schema), schema);
}

TEST(Automata, ARegularExpressionIsOneUnlessItHasManyStates) {
  EXPECT_EQ(automaton_grammar(R"(\d{3}-"[^\]"{]{2,}")"),
            R"(root ::= Regex("\\d{3}-\"[^\\]\"{]{2,}\""))");
  EXPECT_NE(automaton_grammar("([a-z]{1,12} ){1,20}"), "");
  EXPECT_NE(automaton_grammar(std::string(384, 'a')), "");
  for (const std::string& many :
       {std::string("[a-z]{0,129}"), std::string("a{129,}"), std::string("(a{0,99}){0,99}"),
        std::string("((((a{1,99}){1,99}){1,99}){1,99}){1,99}"), std::string(385, 'a'),
        std::string("a{18446744073709551617}"), std::string("a{1"), std::string("a{x}"),
        std::string("a{1,2,3}"), std::string("a{,3}"), std::string("(a")})
    EXPECT_EQ(automaton_grammar(many), "") << many;
}

class AutomatonMasks : public testing::Test {
 protected:
  // How long a string may be, told by its closing quote after each character.
  std::vector<int> lengths(const std::string& source, int most) {
    auto matcher = compiler_.compile(source);
    if (!matcher) {
      ADD_FAILURE() << source << ": " << matcher.error().message;
      return {};
    }
    const TokenId quote = tokenizer_.encode("\"", false)->front();
    EXPECT_TRUE((*matcher)->accept(quote));
    std::vector<int> found;
    std::vector<uint32_t> mask(static_cast<size_t>(vocab_size_ + 31) / 32);
    for (int length = 0; length <= most; ++length) {
      (*matcher)->fill(mask);
      if ((mask[static_cast<size_t>(quote) / 32] >> (quote % 32) & 1u) != 0)
        found.push_back(length);
      const std::vector<TokenId> letter = *tokenizer_.encode("\xC3\xA9", false);  // of two bytes
      for (const TokenId token : letter)
        if (!(*matcher)->accept(token)) return found;
    }
    return found;
  }

  text::Tokenizer tokenizer_ = *text::Tokenizer::load("tests/fixtures/models/llama-bias-f32");
  int64_t vocab_size_ = static_cast<int64_t>(tokenizer_.vocab_size());
  GrammarCompiler compiler_ = GrammarCompiler::create(tokenizer_, vocab_size_, {0}).value();
};

TEST_F(AutomatonMasks, ALengthIsCountedInCharactersOnBothSidesOfEveryBorder) {
  struct Bounds {
    int least, most;
  };
  for (const auto& [least, most] :
       {Bounds{0, 0}, Bounds{0, 3}, Bounds{3, 3}, Bounds{0, 127}, Bounds{5, 128}, Bounds{127, 129},
        Bounds{2, 140}, Bounds{128, 130}, Bounds{129, 300}}) {
    std::vector<int> expected;
    for (int length = least; length <= most; ++length) expected.push_back(length);
    EXPECT_EQ(
        lengths(fmt::format(R"(json_schema:{{"type":"string","minLength":{},"maxLength":{}}})",
                            least, most),
                most + 5),
        expected);
  }
  EXPECT_EQ(lengths(R"(json_schema:{"type":"string","minLength":4})", 6),
            std::vector<int>({4, 5, 6}));
}

TEST_F(AutomatonMasks, RulesAndAutomataTakeTheSameText) {
  EXPECT_EQ(lengths("regex:\"[^\"]{2,4}\"", 9), std::vector<int>({2, 3, 4}));
  EXPECT_EQ(lengths("regex:\"[^\"]{2,200}\"", 4), std::vector<int>({2, 3, 4})) << "rules";
  EXPECT_EQ(lengths("regex:\"([^\"]{2}){2,3}(]|\")", 9), std::vector<int>({4, 6}))
      << "a lone bracket";
  EXPECT_FALSE(compiler_.compile("regex:a{3,2}"));
}

}  // namespace
}  // namespace refrain
