// What becomes of the vectors of models that pool.
#include "runtime/server/pooling_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/server/pooling_request.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = PoolingRequest::Kind;

PooledVector vector_of(std::vector<float> numbers) {
  return std::make_shared<const std::vector<float>>(std::move(numbers));
}

TEST(PoolingAnswer, DimensionsAreTakenBeforeAVectorIsNormalized) {
  EXPECT_THAT(shorten({3, 4, 12}, 0, false), ElementsAre(3, 4, 12));
  EXPECT_THAT(shorten({3, 4, 12}, 2, true), ElementsAre(0.6f, 0.8f));
  EXPECT_THAT(shorten({3, 4, 12}, 9, false), ElementsAre(3, 4, 12));
  EXPECT_THAT(shorten({0, 0}, 0, true), ElementsAre(0, 0)) << "nothing is divided by 0";
}

TEST(PoolingAnswer, Base64IsOfLittleEndianFloats) {
  EXPECT_EQ(base64({}), "");
  EXPECT_EQ(base64({1.0f}), "AACAPw==");
  EXPECT_EQ(base64({1.0f, -2.0f}), "AACAPwAAAMA=");
  EXPECT_EQ(base64({1.0f, -2.0f, 0.5f}), "AACAPwAAAMAAAAA/");
}

TEST(PoolingAnswer, ScoresArePairsOrOneAgainstAll) {
  PoolingRequest request;
  request.kind = Kind::kScore;
  request.num_queries = 1;
  const std::vector<PooledVector> vectors = {vector_of({2, 0}), vector_of({0, 3}),
                                             vector_of({1, 1}), vector_of({-5, 0})};
  const auto scores = [&] {
    std::vector<double> all;
    const Json answer = pooling_answer({}, request, vectors, {});
    for (const Json& entry : answer["data"])
      all.push_back(std::round(entry["score"].get<double>() * 1e6) / 1e6);
    return all;
  };
  EXPECT_THAT(scores(), ElementsAre(0, 0.707107, -1));
  request.num_queries = 2;
  EXPECT_THAT(scores(), ElementsAre(0.707107, 0));
}

TEST(PoolingAnswer, RanksBestFirstAndEqualOnesInTheirOrder) {
  PoolingRequest request;
  request.kind = Kind::kRerank;
  request.num_queries = 1;
  request.documents = {"a", "b", "c"};
  request.top_n = 2;
  const Json answer = pooling_answer(
      {}, request, {vector_of({1, 0}), vector_of({0, 1}), vector_of({2, 2}), vector_of({1, 1})},
      {});
  ASSERT_EQ(answer["results"].size(), 2u);
  EXPECT_EQ(answer["results"][0]["index"], 1);
  EXPECT_EQ(answer["results"][0]["document"]["text"], "b");
  EXPECT_EQ(answer["results"][1]["index"], 2);
}

TEST(PoolingRequest, TakesTextsAndTokensAlike) {
  EngineConfig config;
  config.served_model_names = {"m"};
  ModelConfig model;
  model.hidden_size = 64;
  const auto parse = [&](const std::string& text, Kind kind = Kind::kEmbeddings) {
    TokenLists ids;
    const Json body = *parse_json(text, "input", ids);
    return parse_pooling_request(body, std::move(ids), kind, config, model);
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(parse(R"({"input": "a"})")->prompts, std::vector<Prompt>{"a"});
  EXPECT_EQ(parse(R"({"input": [1, 2]})")->prompts, (std::vector<Prompt>{Tokens{1, 2}}));
  EXPECT_EQ(parse(R"({"input": [[1], "b"]})")->prompts, (std::vector<Prompt>{Tokens{1}, "b"}));
  EXPECT_TRUE(parse(R"({"input": "a"})")->pooling->normalize);
  EXPECT_FALSE(parse(R"({"input": "a"})", Kind::kPooling)->pooling->normalize);
  EXPECT_FALSE(parse(R"({"input": "a", "use_activation": false})")->pooling->normalize);
  const auto refused = parse(R"({"input": "a", "dimensions": 8})");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("does not support matryoshka representation"));
  model.is_matryoshka = true;
  EXPECT_EQ(parse(R"({"input": "a", "dimensions": 8})")->pooling->dimensions, 8u);
  EXPECT_EQ(parse(R"({"input": "a", "dimensions": 65})").error().field, "dimensions");
  EXPECT_EQ(parse(R"({"input": "a", "x": 1})")->ignored, std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace refrain
