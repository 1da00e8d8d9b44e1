// What a request has that nothing reads is said once.
#include "runtime/server/ignored_fields.h"

#include <gtest/gtest.h>

#include "runtime/server/api_request.h"

namespace refrain {
namespace {

using Names = std::vector<std::string>;

TEST(IgnoredFields, AreThoseThatNothingReads) {
  const Json body = {{"prompt", "a"}, {"temperature", 1}, {"user", "u"},
                     {"typo", 1},     {"messages", 1},    {"x", nullptr}};
  EXPECT_EQ(ignored_fields(body, false), (Names{"messages", "typo", "user"}));
  EXPECT_EQ(ignored_fields(body, true), (Names{"prompt", "typo", "user"}));
  EXPECT_EQ(parse_completion_request(body)->ignored, (Names{"messages", "typo", "user"}));
  Json many = Json::object();
  for (int i = 0; i < 100; ++i) many["field" + std::to_string(i)] = i;
  EXPECT_EQ(ignored_fields(many, true).size(), 8u);
}

TEST(IgnoredFields, EachIsSaidOnceAndNotWithoutEnd) {
  IgnoredFields fields;
  EXPECT_EQ(fields.say({"a", "b"}), 2);
  EXPECT_EQ(fields.say({"b", "c"}), 1);
  EXPECT_EQ(fields.say({"a", "b", "c"}), 0);
  int said = 0;
  for (int i = 0; i < 1000; ++i) said += fields.say({"x" + std::to_string(i)});
  EXPECT_EQ(said, 253);
}

}  // namespace
}  // namespace refrain
