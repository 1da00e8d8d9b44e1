#include "runtime/server/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refrain {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using Field = std::pair<std::string, std::string>;

HttpRequest request(const std::string& method, std::map<std::string, std::string> headers) {
  HttpRequest request;
  request.method = method;
  request.path = "/v1/models";
  request.headers = std::move(headers);
  return request;
}

HttpRequest question(const std::string& origin, const std::string& method,
                     const std::string& headers = {}) {
  HttpRequest asked = request("OPTIONS", {{"origin", origin}});
  asked.headers["access-control-request-method"] = method;
  if (!headers.empty()) asked.headers["access-control-request-headers"] = headers;
  return asked;
}

const HttpRequest kFromA = request("GET", {{"origin", "https://a"}});

TEST(Cors, NothingIsSaidWhenNoOriginIsAllowed) {
  const CorsPolicy policy({});
  EXPECT_FALSE(policy.allows("https://a"));
  EXPECT_THAT(policy.answer_headers(kFromA), IsEmpty());
  EXPECT_FALSE(policy.preflight(question("https://a", "POST")));
}

TEST(Cors, AnAllowedOriginIsNamedAndCachesAreTold) {
  const CorsPolicy policy({{"https://a", "https://b"}, false, {"*"}, {"*"}});
  EXPECT_THAT(policy.answer_headers(kFromA),
              UnorderedElementsAre(Field{"Access-Control-Allow-Origin", "https://a"},
                                   Field{"Vary", "Origin"}));
  // A cache may not give these to the origins that are allowed.
  EXPECT_THAT(policy.answer_headers(request("GET", {{"origin", "https://evil"}})),
              UnorderedElementsAre(Field{"Vary", "Origin"}));
  EXPECT_THAT(policy.answer_headers(request("GET", {})),
              UnorderedElementsAre(Field{"Vary", "Origin"}));
}

TEST(Cors, AllOriginsAreAStarUnlessCredentialsAreAllowed) {
  EXPECT_THAT(CorsPolicy({{"*"}, false, {"*"}, {"*"}}).answer_headers(kFromA),
              UnorderedElementsAre(Field{"Access-Control-Allow-Origin", "*"}));
  EXPECT_THAT(CorsPolicy({{"*"}, true, {"*"}, {"*"}}).answer_headers(kFromA),
              UnorderedElementsAre(Field{"Access-Control-Allow-Origin", "https://a"},
                                   Field{"Access-Control-Allow-Credentials", "true"},
                                   Field{"Vary", "Origin"}));
}

TEST(Cors, APreflightIsGrantedWhatItAsksFor) {
  const CorsPolicy policy({{"https://a"}, false, {"*"}, {"*"}});
  const auto answer = policy.preflight(question("https://a", "POST", "authorization, x-one"));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 204);
  EXPECT_TRUE(answer->body.empty());
  EXPECT_THAT(answer->headers,
              UnorderedElementsAre(Field{"Access-Control-Allow-Methods", "POST"},
                                   Field{"Access-Control-Allow-Headers", "authorization, x-one"},
                                   Field{"Access-Control-Max-Age", "600"}));
}

TEST(Cors, APreflightIsRefusedWithTheOptionAtFault) {
  const CorsPolicy policy({{"https://a"}, false, {"GET", "POST"}, {"Authorization"}});
  const auto refusal = [&](const HttpRequest& asked) {
    const auto answer = policy.preflight(asked);
    return answer && answer->status == 403 ? answer->body : "allowed";
  };
  EXPECT_THAT(refusal(question("https://b", "GET")), HasSubstr("--allowed-origins"));
  EXPECT_THAT(refusal(question("HTTPS://A", "GET")), HasSubstr("--allowed-origins"));
  EXPECT_THAT(refusal(question("https://a", "DELETE")), HasSubstr("--allowed-methods"));
  EXPECT_THAT(refusal(question("https://a", "GET", "content-type, x-one")),
              testing::AllOf(HasSubstr("--allowed-headers"), HasSubstr("x-one")));
  EXPECT_EQ(refusal(question("https://a", "POST", "content-type ,authorization,")), "allowed");
}

TEST(Cors, OtherOptionsRequestsAreNoPreflight) {
  const CorsPolicy policy({{"*"}, false, {"*"}, {"*"}});
  EXPECT_FALSE(policy.preflight(request("OPTIONS", {{"origin", "https://a"}})));
  EXPECT_FALSE(policy.preflight(request("OPTIONS", {{"access-control-request-method", "GET"}})));
  HttpRequest get = question("https://a", "GET");
  get.method = "GET";
  EXPECT_FALSE(policy.preflight(get));
}

}  // namespace
}  // namespace refrain
