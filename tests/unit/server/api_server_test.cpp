// Which requests the API refuses and why, and the routes that need no model.
#include "runtime/server/api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/text/tokenizer.h"
#include "tests/unit/server/fake_engine.h"

namespace refrain {
namespace {

using test::FakeEngine;
using test::FakeExchange;
using testing::Contains;
using testing::HasSubstr;
using testing::Pair;

class ApiServerTest : public testing::Test {
 protected:
  ApiServerTest() {
    engine_.options.served_model_names = {"tiny"};
    engine_.options.worker.max_model_len = 64;
    engine_.options.api_keys = {"secret"};
  }

  ApiServer& api() {
    if (!api_) {
      TextSide text;
      text.tokenizer = std::make_shared<const text::Tokenizer>(
          *text::Tokenizer::load("tests/fixtures/models/qwen3"));
      api_.emplace(engine_, text, *ApiKeys::load(engine_.options), 2);
    }
    return *api_;
  }
  static HttpRequest request(const std::string& method, const std::string& path,
                             const std::string& body = "", const std::string& key = "secret") {
    HttpRequest made{.method = method,
                     .path = path,
                     .query = {},
                     .headers = {},
                     .body = body,
                     .body_charge = nullptr};
    if (!key.empty()) made.headers["authorization"] = "Bearer " + key;
    return made;
  }
  HttpReply answer(HttpRequest request) {
    auto exchange = std::make_shared<FakeExchange>();
    api().handle(std::move(request), exchange);
    return exchange->wait();
  }

  FakeEngine engine_;
  std::optional<ApiServer> api_;
};

TEST_F(ApiServerTest, RefusesWhatTheHeadAloneShows) {
  EXPECT_EQ(answer(request("GET", "/nowhere")).status, 404);
  EXPECT_EQ(answer(request("GET", "/nowhere", "", "")).status, 401);
  const HttpReply no_key = answer(request("GET", "/v1/models", "", "wrong"));
  EXPECT_EQ(no_key.status, 401);
  EXPECT_THAT(no_key.headers, Contains(Pair("WWW-Authenticate", "Bearer")));
  const HttpReply method = answer(request("GET", "/v1/completions"));
  EXPECT_EQ(method.status, 405);
  EXPECT_THAT(method.headers, Contains(Pair("Allow", "POST")));
  auto with_body = request("GET", "/v1/models");
  with_body.headers["content-length"] = "3";
  EXPECT_EQ(answer(with_body).status, 413);
  auto of_a_page = request("POST", "/v1/completions", "{}");
  of_a_page.headers["origin"] = "https://elsewhere";
  of_a_page.headers["content-type"] = "text/plain";
  const HttpReply type = answer(of_a_page);
  EXPECT_EQ(type.status, 415);
  EXPECT_THAT(type.headers, Contains(Pair("Accept-Post", "application/json")));
}

TEST_F(ApiServerTest, NeedsNoKeyForProbesAndPages) {
  EXPECT_EQ(answer(request("GET", "/live", "", "")).status, 200);
  EXPECT_EQ(answer(request("HEAD", "/live", "", "")).status, 200);
  EXPECT_EQ(answer(request("GET", "/dashboard", "", "")).status, 200);
  EXPECT_EQ(answer(request("GET", "/ready", "", "")).status, 503);
  EXPECT_EQ(answer(request("GET", "/version", "", "")).status, 401);
}

TEST_F(ApiServerTest, RoutesOfTheOtherKindOfModelAreRefused) {
  const HttpReply pools = answer(request("POST", "/rerank", "{}"));
  EXPECT_EQ(pools.status, 400);
  EXPECT_THAT(pools.body, HasSubstr("The model does not support Rerank (Score) API"));
}

TEST_F(ApiServerTest, OperatorsRoutesNeedTheControlKey) {
  EXPECT_EQ(answer(request("POST", "/resume", R"({"group": 0})")).status, 404);
  api_.reset();
  engine_.options.control_key = "operator";
  EXPECT_EQ(answer(request("POST", "/resume", R"({"group": 0})")).status, 401);
  EXPECT_EQ(answer(request("POST", "/resume", R"({"group": 0})", "operator")).status, 200);
  EXPECT_EQ(answer(request("POST", "/restart", R"({"group": 7})", "operator")).status, 400);
  EXPECT_EQ(answer(request("POST", "/restart", "{}", "operator")).status, 400);
  ASSERT_EQ(engine_.orders.size(), 1U);
  EXPECT_EQ(engine_.orders[0].what, GroupOrder::What::kResume);
}

TEST_F(ApiServerTest, ADrainRefusesNewWorkAndEndsTheProcessOnce) {
  engine_.options.control_key = "operator";
  EXPECT_EQ(answer(request("POST", "/drain", "", "operator")).status, 503);
  int ended = 0;
  api().on_drain([&] { ++ended; });
  EXPECT_EQ(answer(request("POST", "/drain", "", "operator")).status, 202);
  EXPECT_EQ(answer(request("POST", "/drain", "", "operator")).status, 202);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(answer(request("POST", "/v1/completions", "{}")).status, 503);
  EXPECT_THAT(answer(request("GET", "/ready")).body, HasSubstr("draining"));
}

TEST_F(ApiServerTest, ListsItsRoutes) {
  const Json routes = Json::parse(answer(request("GET", "/")).body).at("routes");
  EXPECT_EQ(routes.size(), 27U);
  for (const char* route : {"GET /live", "POST /v1/chat/completions", "POST /v2/rerank",
                            "POST /v1/messages/count_tokens", "POST /v1/unload_lora_adapter"})
    EXPECT_EQ(std::ranges::count(routes, route), 1) << route;
}

TEST_F(ApiServerTest, TellsOfTheModelByItsNames) {
  EXPECT_EQ(Json::parse(answer(request("GET", "/v1/models")).body).at("data").size(), 1U);
  EXPECT_EQ(answer(request("GET", "/v1/models/tiny")).status, 200);
  EXPECT_EQ(answer(request("GET", "/v1/models/other/one")).status, 404);
  engine_.known.emplace_back().name = "other/one";
  EXPECT_EQ(answer(request("GET", "/v1/models/other/one")).status, 200);
}

TEST_F(ApiServerTest, TurnsTextIntoTokensAndBack) {
  const Json tokens =
      Json::parse(answer(request("POST", "/tokenize", R"({"prompt": "two words"})")).body);
  EXPECT_EQ(tokens.at("max_model_len"), 64);
  const std::string back = Json{{"tokens", tokens.at("tokens")}}.dump();
  engine_.read.vocab_size = 1 << 20;
  EXPECT_EQ(Json::parse(answer(request("POST", "/detokenize", back)).body).at("prompt"),
            "two words");
  const auto ids = [](size_t count) {
    return Json{{"tokens", std::vector<TokenId>(count, 1)}}.dump();
  };
  EXPECT_EQ(answer(request("POST", "/detokenize", ids(64))).status, 200);
  const HttpReply many = answer(request("POST", "/detokenize", ids(65)));
  EXPECT_EQ(many.status, 400);
  EXPECT_EQ(Json::parse(many.body)["error"]["param"], "tokens");
  EXPECT_THAT(many.body, HasSubstr("tokens holds 65 token ids; at most 64 (max_model_len)"));
  EXPECT_EQ(answer(request("POST", "/tokenize", "[1]")).status, 400);
  EXPECT_EQ(answer(request("POST", "/tokenize", R"({"prompt": "x", "model": "no"})")).status, 404);
}

TEST_F(ApiServerTest, TextWorkThatIsStoppedAnswersSo) {
  api().stop_text();
  const HttpReply reply = answer(request("POST", "/tokenize", R"({"prompt": "x"})"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("shutting down"));
}

TEST_F(ApiServerTest, BodiesThatNameAdaptersAreReadOffTheConnectionsThread) {
  engine_.options.lora.directory = ".";
  const std::string body = R"({"lora_name": "one", "lora_path": "one"})";
  EXPECT_EQ(answer(request("POST", "/v1/unload_lora_adapter", body)).status, 200);
  EXPECT_EQ(answer(request("POST", "/v1/unload_lora_adapter", "[]")).status, 400);
  api().stop_text();
  for (const char* route : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
    EXPECT_EQ(answer(request("POST", route, body)).status, 503) << route;
}

}  // namespace
}  // namespace refrain
