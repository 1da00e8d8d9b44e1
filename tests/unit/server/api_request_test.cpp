#include "runtime/server/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/server/url.h"

namespace refrain {
namespace {

using testing::HasSubstr;

std::string completion_error(const std::string& json) {
  const auto body = parse_json(json);
  if (!body) return body.error().message;
  const auto request = parse_completion_request(*body);
  return request ? "" : request.error().field + ": " + request.error().message;
}

// As the server reads a body: token ids are taken out while it is parsed.
Result<ApiRequest> completion_of(const std::string& json) {
  TokenLists ids;
  auto body = parse_json(json, "prompt", ids);
  if (!body) return tl::make_unexpected(body.error());
  return parse_completion_request(*body, std::move(ids));
}

TEST(CompletionRequest, TokenIdsAreReadWithoutATreeOfThem) {
  TokenLists ids;
  const auto flat = parse_json(R"({"prompt": [1, 0, 2147483647], "stop": [3]})", "prompt", ids);
  ASSERT_TRUE(flat);
  EXPECT_EQ(*flat, (Json{{"prompt", Json::array()}, {"stop", {3}}}));
  EXPECT_EQ(ids.flat, (std::vector<TokenId>{1, 0, 2147483647}));
  const auto nested = parse_json(R"({"prompt": ["a", [1, 2], [], [3]]})", "prompt", ids);
  ASSERT_TRUE(nested);
  EXPECT_EQ((*nested)["prompt"], (Json{"a", Json::array(), Json::array(), Json::array()}));
  EXPECT_TRUE(ids.flat.empty());  // of the text before
  EXPECT_EQ(ids.nested, (std::vector<std::vector<TokenId>>{{1, 2}, {}, {3}}));
}

// Whatever a prompt is, both ways of reading it say the same.
TEST(CompletionRequest, TokenIdsTakenOutMeanWhatTheTreeMeans) {
  for (const char* prompt : {R"("text")",
                             "[]",
                             "[1,2,3]",
                             "[[1,2],[3]]",
                             R"(["a","b"])",
                             R"(["a",[1],[],"b",[2,3]])",
                             "[[]]",
                             "[1,-1]",
                             "[1.5]",
                             "[[1,-1]]",
                             "[4294967296]",
                             "[[1],2]",
                             R"([1,"a"])",
                             R"(["a",1])",
                             "[1,[2]]",
                             "[[[1]]]",
                             R"({"a":1})",
                             R"([{"a":1}])",
                             R"([[{"a":1}]])",
                             R"([[1,{"prompt":[2]}]])",
                             "null",
                             "true",
                             "7",
                             "[true]",
                             "[1e3]",
                             "[-0]",
                             R"([1],"prompt":[2])",
                             R"([1],"prompt":"a")",
                             R"("a","other":[1,2],"prompt":[[3]])"}) {
    const std::string text = std::string(R"({"n":1,"prompt":)") + prompt + "}";
    const auto tree = parse_json(text);
    ASSERT_TRUE(tree) << text;
    const auto by_tree = parse_completion_request(*tree);
    const auto taken = completion_of(text);
    ASSERT_EQ(by_tree.has_value(), taken.has_value()) << text;
    if (taken) {
      EXPECT_EQ(by_tree->prompts, taken->prompts) << text;
    } else {
      EXPECT_EQ(by_tree.error().field, taken.error().field) << text;
    }
  }
  EXPECT_FALSE(completion_of(R"({"prompt": [1, 2)"));
  EXPECT_FALSE(completion_of(R"([1, 2])"));
}

TEST(CompletionRequest, ReadsEveryField) {
  const auto body = parse_json(R"({"model": "m", "prompt": ["a", [1, 2]], "n": 3, "stream": true,
      "stream_options": {"include_usage": true}, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9,
      "top_k": 5, "min_p": 0.1, "seed": -2, "stop": ["x", "y"], "logit_bias": {"5": -2.5},
      "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5, "logprobs": 2,
      "stop_token_ids": [9], "allowed_token_ids": [1, 2], "ignore_eos": true, "min_tokens": 2,
      "user": "u", "max_queue_wait": 1.5, "timeout": 0.25, "response_format": {"type": "text"}})");
  ASSERT_TRUE(body) << body.error().message;
  const auto request = parse_completion_request(*body);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(std::get<std::string>(request->prompts[0]), "a");
  EXPECT_EQ(std::get<std::vector<TokenId>>(request->prompts[1]), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(request->n, 3);
  EXPECT_TRUE(request->stream && request->include_usage && request->logprobs);
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_EQ(request->max_queue_wait, std::chrono::milliseconds(1500));
  EXPECT_EQ(request->timeout, std::chrono::milliseconds(250));
  const SamplingParams& sampling = request->sampling;
  EXPECT_EQ(sampling.temperature, 0.5);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.seed, static_cast<uint64_t>(-2));
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -2.5f}}));
  EXPECT_EQ(sampling.logprobs, 2);
  EXPECT_EQ(sampling.stop_token_ids, std::vector<TokenId>{9});
  EXPECT_EQ(sampling.allowed_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_TRUE(sampling.ignore_eos);
}

TEST(CompletionRequest, ServersDefaultsHoldUntilTheRequestSaysOtherwise) {
  RequestRules rules;
  rules.defaults = {0.6, 0.95, 0.1, 1.05, 20, 12};
  const auto plain = parse_completion_request(*parse_json(R"({"prompt": "a"})"), {}, rules);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->sampling.temperature, 0.6);
  EXPECT_EQ(plain->sampling.top_p, 0.95);
  EXPECT_EQ(plain->sampling.min_p, 0.1);
  EXPECT_EQ(plain->sampling.repetition_penalty, 1.05);
  EXPECT_EQ(plain->sampling.top_k, 20);
  EXPECT_EQ(plain->max_tokens, 12);  // the most there is, of 16
  const auto own = parse_completion_request(
      *parse_json(R"({"prompt": "a", "temperature": 1, "top_k": -1, "max_tokens": 3})"), {}, rules);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->sampling.temperature, 1.0);
  EXPECT_EQ(own->sampling.top_k, -1);
  EXPECT_EQ(own->sampling.top_p, 0.95);
  EXPECT_EQ(own->max_tokens, 3);
  const auto greedy = parse_completion_request(
      *parse_json(R"({"prompt": "a", "temperature": null, "max_tokens": 99})"), {}, rules);
  EXPECT_EQ(greedy->sampling.temperature, 0.6);
  EXPECT_EQ(greedy->max_tokens, 12);
}

TEST(CompletionRequest, AbsentAndNullFieldsTakeDefaults) {
  const auto request =
      parse_completion_request(*parse_json(R"({"prompt": "a", "n": null, "stop": null})"));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->n, 1);
  EXPECT_EQ(request->max_tokens, 16);
  EXPECT_FALSE(request->timeout);
  EXPECT_TRUE(request->sampling.stop.empty());
  EXPECT_EQ(request->sampling.logprobs, -1);
}

// R-15: −1, 0, 2^31, 2^63, huge, fractions, strings, booleans, lists.
TEST(CompletionRequest, NumbersOutOfRangeNameTheirField) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"n", {"0", "-1", "17", "2147483648", "9223372036854775808", "1.5", "\"2\"", "true", "[1]"}},
      {"max_tokens", {"0", "-1", "2147483648", "9223372036854775808", "1e308", "\"x\"", "{}"}},
      {"logprobs", {"-1", "2147483648", "true", "1.5"}},
      {"temperature", {"\"hot\"", "[]", "1e308", "-1e308"}},
      {"top_k", {"-2", "2147483648", "0.5"}},
      {"seed", {"\"a\"", "1.5", "9223372036854775808"}},
      {"max_queue_wait", {"0", "-1", "1e308", "\"1\"", "true", "86401"}},
      {"timeout", {"0", "-1", "1e308", "\"1\"", "true", "86401"}},
      {"best_of", {"2", "0"}},
      {"stop", {"5", "[5]", "{}"}},
      {"logit_bias", {"[]", "{\"x\": 1}", "{\"1\": 101}", "{\"-1\": 1}", "{\"1\": \"a\"}"}},
      {"stop_token_ids", {"5", "[-1]", "[1.5]", "[4294967296]"}},
      {"allowed_token_ids", {"\"a\"", "[\"a\"]"}},
      {"stream", {"\"yes\"", "1"}},
      {"echo", {"1"}},
      {"stream_options", {"{}"}},
      {"response_format", {"\"text\"", "{\"type\": \"xml\"}"}},
      {"suffix", {"\"x\""}},
      {"bad_words", {"\"x\"", "[1]"}},
      {"truncate_prompt_tokens", {"0", "-2", "1.5", "\"a\""}},
      {"return_tokens_as_token_ids", {"1"}},
      {"prompt", {"5", "{}", "[]", "[{}]", "[1, \"a\"]", "[1.5]", "[[-1]]", "null"}},
  };
  for (const auto& [field, values] : cases) {
    for (const std::string& value : values) {
      const std::string begin = field == "prompt" ? "{" : R"({"prompt": "a", )";
      const std::string error = completion_error(begin + "\"" + field + "\": " + value + "}");
      EXPECT_THAT(error, HasSubstr(field)) << field << " = " << value;
    }
  }
}

TEST(CompletionRequest, StreamOptionsOfWrongTypesNameTheirField) {
  const auto error = [](const std::string& options) {
    return completion_error(R"({"prompt": "a", "stream": true, "stream_options": )" + options +
                            "}");
  };
  EXPECT_EQ(error(R"({"include_usage": true, "continuous_usage_stats": false})"), "");
  EXPECT_EQ(error("[]"), "stream_options: stream_options must be an object");
  for (const std::string name : {"include_usage", "continuous_usage_stats"})
    for (const char* value : {R"("true")", "1", "[]"})
      EXPECT_EQ(error("{\"" + name + "\": " + value + "}"),
                "stream_options." + name + ": stream_options." + name + " must be true or false");
}

TEST(CompletionRequest, TheSeedMinusOneIsNone) {
  for (const char* chat : {R"({"messages": [{"role": "user", "content": "a"}], "seed": -1})",
                           R"({"messages": [{"role": "user", "content": "a"}]})"})
    EXPECT_FALSE(parse_chat_request(*parse_ordered_json(chat))->sampling.seed) << chat;
  EXPECT_FALSE(
      parse_completion_request(*parse_json(R"({"prompt": "a", "seed": -1})"))->sampling.seed);
}

TEST(CompletionRequest, AllowedTokensAreASet) {
  const auto request = parse_completion_request(
      *parse_json(R"({"prompt": "a", "allowed_token_ids": [9, 1, 9, 4, 1]})"));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->sampling.allowed_token_ids, (std::vector<TokenId>{1, 4, 9}));
}

TEST(CompletionRequest, ManyPromptsAreRefused) {
  std::string prompts;
  for (int i = 0; i < 257; ++i) prompts += (i == 0 ? "" : ",") + std::string("\"a\"");
  EXPECT_THAT(completion_error("{\"prompt\": [" + prompts + "]}"), HasSubstr("256"));
}

TEST(ParseJson, DepthAndMembersAreBounded) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')));
  EXPECT_THAT(parse_json(std::string(65, '[') + std::string(65, ']')).error().message,
              HasSubstr("64 levels"));
  EXPECT_THAT(parse_json(std::string(1'000'000, '[')).error().message, HasSubstr("64 levels"));
  EXPECT_TRUE(parse_json("\"" + std::string(100, '[') + "\\\"" + std::string(100, '{') + "\""));
  std::string wide = "{\"a\": [1, 2, 3]";
  for (int i = 1; i < 1024; ++i) wide += ", \"k" + std::to_string(i) + "\": 1";
  EXPECT_TRUE(parse_ordered_json(wide + "}"));
  EXPECT_THAT(parse_ordered_json(wide + ", \"b\": 1}").error().message,
              HasSubstr("more than 1024 members"));
}

TEST(ParseJson, MistakesAreSentencesWithoutInternals) {
  for (const char* text : {"", "{", "[1,]", "\xff\xfe", "{\"a\": nan}", "]", "{\"a\" 1}"}) {
    const auto parsed = parse_json(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("not valid JSON")) << text;
    EXPECT_THAT(parsed.error().message, testing::Not(HasSubstr("json.exception"))) << text;
  }
}

TEST(Url, DecodesWhatIsEncodedAndLeavesTheRest) {
  EXPECT_EQ(percent_decode("a%20b+c%2Fd"), "a b+c/d");
  EXPECT_EQ(percent_decode("%zz%4"), "%zz%4");
  EXPECT_EQ(percent_decode("%"), "%");
  EXPECT_EQ(parse_query("a+b=c+d").at("a b"), "c d");
  for (const char* target : {"/v1/a+b?c=1", "http://host:80/v1/a+b?c=1", "HTTPS://x/v1/a+b?c=1"}) {
    const UrlTarget parsed = parse_target(target);
    EXPECT_EQ(parsed.path, "/v1/a+b") << target;
    EXPECT_EQ(parsed.query.at("c"), "1") << target;
  }
  EXPECT_EQ(parse_target("http://host").path, "/");
  EXPECT_EQ(parse_target("http://host?c=1").query.at("c"), "1");
  EXPECT_EQ(parse_target("/http://host/a").path, "/http://host/a");
  const auto query = parse_query("a=1&b&=x&c=%26&&a=2");
  EXPECT_EQ(query.at("a"), "2");
  EXPECT_EQ(query.at("b"), "");
  EXPECT_EQ(query.at("c"), "&");
}

TEST(JsonCost, ManyEmptyListsAreRefusedBeforeTheyAreParsed_R24) {
  const auto lists = [](size_t count) {
    std::string text = "[[]";
    for (size_t i = 1; i < count; ++i) text += ",[]";
    return text + "]";
  };
  EXPECT_TRUE(parse_json(lists(1000)));
  for (const auto& error :
       {parse_json(lists(1000000)).error(), parse_ordered_json(lists(1000000)).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message, testing::HasSubstr("too many lists"));
  }
  std::string ids = "[1";
  for (int i = 0; i < 1000000; ++i) ids += ",1";
  EXPECT_TRUE(parse_json(ids + "]"));
}

}  // namespace
}  // namespace refrain
