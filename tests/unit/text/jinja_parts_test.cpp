// The parts of the template language, each by itself.
#include <gtest/gtest.h>

#include <chrono>

#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/expression_parser.h"
#include "runtime/text/jinja/lexer.h"

namespace refrain::jinja {
namespace {

ExprPtr parsed(const std::string& text) {
  ExpressionTokens tokens(tokenize("{{ " + text + " }}"));
  tokens.take();
  auto expr = parse_expression(tokens);
  tokens.expect(TokenKind::kVariableEnd, "'}}'");
  return expr;
}

class Expressions : public ::testing::Test {
 protected:
  std::string value(const std::string& text) {
    return to_repr(Evaluator(rendering_, variables_).evaluate(*parsed(text), scope_));
  }

  Value variables_{std::make_shared<Dict>()};
  ScopePtr scope_ = std::make_shared<Scope>();
  Rendering rendering_{.budget = Budget({.steps = 1000, .output_bytes = 1000}),
                       .now = std::chrono::system_clock::time_point{}};
};

TEST_F(Expressions, BindAsTightAsTheirOperators) {
  EXPECT_EQ(value("1 + 2 * 3 ** 2"), "19");
  EXPECT_EQ(value("2 ** 3 ** 2"), "64");  // from the left, as jinja2 has it
  EXPECT_EQ(value("10 - 4 - 3"), "3");
  EXPECT_EQ(value("7 // 2 % 2 / 1"), "1.0");
  EXPECT_EQ(value("-2 ** 2"), "4");
  EXPECT_EQ(value("1 ~ 2 ~ 3"), "'123'");
  EXPECT_EQ(value("not 1 == 2 and false or true"), "True");
  EXPECT_EQ(value("1 < 2 < 2"), "False");
  EXPECT_EQ(value("1 not in [2, 3] and 2 in [2, 3]"), "True");
  EXPECT_EQ(value("1 if false else 2 if false else 3"), "3");
  EXPECT_EQ(value("-1 | abs + 1"), "2");
  EXPECT_EQ(value("not 3 is even"), "True");
}

TEST_F(Expressions, FindNamesInwardsToOutwards) {
  variables_.as_dict()->set("name", "variable");
  EXPECT_EQ(value("name"), "'variable'");
  scope_->set("name", "outer");
  scope_ = inner_scope(scope_);
  EXPECT_EQ(value("name"), "'outer'");
  scope_->set("name", "inner");
  EXPECT_EQ(value("name"), "'inner'");
}

TEST_F(Expressions, EndWithTheirBudget) {
  EXPECT_THROW(value("'x' * 1001"), TemplateError);
  EXPECT_THROW(value("range(100000)"), TemplateError);
}

TEST(ExpressionTokens, LimitDepthAndSizeOfATree) {
  const auto times = [](const char* text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_NO_THROW(parsed(times("(", 40) + "1" + times(")", 40)));
  EXPECT_THROW(parsed(times("(", 60) + "1" + times(")", 60)), TemplateError);
  EXPECT_NO_THROW(parsed("1" + times(" + 1", 990)));
  EXPECT_THROW(parsed("1" + times(" + 1", 1010)), TemplateError);
  EXPECT_NO_THROW(parsed("a" + times(".b", 100)));
  EXPECT_THROW(parsed("a" + times(".b", 101)), TemplateError);
}

TEST(Budget, TakesStepsUntilTheyAreUsedUp) {
  Budget budget({.steps = 10, .output_bytes = 640});
  budget.charge(4);
  budget.charge_text(320);  // five steps
  budget.charge(1);
  EXPECT_THROW(budget.charge(1), TemplateError);
  EXPECT_THROW(Budget({.steps = 10, .output_bytes = 640}).charge_text(641), TemplateError);
}

int depth_of(Budget& budget, int depth = 0) try {
  const Budget::Nesting nesting(budget);
  return depth < 10'000 ? depth_of(budget, depth + 1) : depth;
} catch (const TemplateError&) {
  return depth;
}

TEST(Budget, GivesDepthBack) {
  Budget budget({});
  EXPECT_EQ(depth_of(budget), 1000);
  EXPECT_EQ(depth_of(budget), 1000);
}

TEST(Circles, FreeWhatRefersToItself) {
  std::weak_ptr<Namespace> seen;
  {
    Circles circles;
    const auto space = std::make_shared<Namespace>();
    space->attributes.set("self", space);
    circles.add(space);
    seen = space;
  }
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace refrain::jinja
