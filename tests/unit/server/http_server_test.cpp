#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>

#include "tests/unit/server/http_client.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

// Answers with what it was asked, at once.
void echo(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  exchange->reply(200, "text/plain", request.method + " " + request.path + " " + request.body);
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  ServerFixture server({}, echo);
  RawClient client(server.port());
  for (const char* path : {"/one", "/two"}) {
    client.send(get(path));
    const std::string answer = client.read_until(std::string("GET ") + path + " ");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(answer, HasSubstr(path));
  }
  EXPECT_EQ(server.server().connections(), 1);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  ServerFixture server({}, echo);
  RawClient client(server.port());
  client.send(get("/one") + post("/two", "body") + get("/three", "Connection: close\r\n"));
  const std::string all = client.read_all();
  const size_t one = all.find("GET /one "), two = all.find("POST /two body"),
               three = all.find("GET /three ");
  ASSERT_NE(three, std::string::npos) << all;
  EXPECT_LT(one, two);
  EXPECT_LT(two, three);
}

TEST(HttpServer, SplitsPathAndQueryAndLowersHeaderNames) {
  std::promise<HttpRequest> seen;
  ServerFixture server({}, [&](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    exchange->reply(204, "text/plain", "");
    seen.set_value(std::move(request));
  });
  RawClient client(server.port());
  client.send(get("/a%20b?x=1&y=%2B", "X-Some-Thing: Value\r\n"));
  const HttpRequest request = seen.get_future().get();
  EXPECT_EQ(request.path, "/a b");
  EXPECT_EQ(request.query.at("x"), "1");
  EXPECT_EQ(request.query.at("y"), "+");
  EXPECT_EQ(request.headers.at("x-some-thing"), "Value");
}

TEST(HttpServer, HeadHasTheLengthAndNoBody) {
  ServerFixture server({}, echo);
  RawClient client(server.port());
  client.send("HEAD /abc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, HasSubstr("Content-Length: 10\r\n"));
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n"));
}

TEST(HttpServer, SaysContinueBeforeTheBodyWhenAsked) {
  ServerFixture server({}, echo);
  RawClient client(server.port());
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  client.send("body");
  EXPECT_THAT(client.read_until("POST /x body"), HasSubstr("POST /x body"));
}

TEST(HttpServer, RefusesABodyOverTheLimitBeforeReadingIt) {
  HttpOptions options;
  options.max_body_bytes = 100;
  ServerFixture server(options, echo);
  RawClient client(server.port());
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n");
  EXPECT_THAT(client.read_all(),
              testing::AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("error 413")));
}

TEST(HttpServer, ARefusalReachesAClientThatStillSends) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  ServerFixture server(options, echo);
  RawClient client(server.port());
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" +
              std::string(300000, 'a'));
  EXPECT_THAT(client.read_until("error 413"), HasSubstr("error 413"));
}

TEST(HttpServer, RefusesAChunkedBodyOverTheLimit) {
  HttpOptions options;
  options.max_body_bytes = 100;
  ServerFixture server(options, echo);
  RawClient client(server.port());
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n" +
              std::string(200, 'a') + "\r\n0\r\n\r\n");
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 413"));
}

TEST(HttpServer, RefusesHeadersOverTheLimits) {
  HttpOptions options;
  options.max_header_bytes = 2000;
  options.max_header_fields = 10;
  ServerFixture server(options, echo);
  RawClient large(server.port());
  large.send(get("/x", "A: " + std::string(3000, 'b') + "\r\n"));
  EXPECT_THAT(large.read_all(), StartsWith("HTTP/1.1 431"));
  std::string fields;
  for (int i = 0; i < 11; ++i) fields += "h" + std::to_string(i) + ": x\r\n";
  RawClient many(server.port());
  many.send(get("/x", fields));
  EXPECT_THAT(many.read_all(), StartsWith("HTTP/1.1 431"));
}

TEST(HttpServer, RefusesWhatIsNoHttp) {
  ServerFixture server({}, echo);
  for (const char* bytes : {"\x01\x02 nonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"}) {
    RawClient client(server.port());
    client.send(bytes);
    EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 400")) << bytes;
  }
}

TEST(HttpServer, ClosesAConnectionThatSendsItsHeaderTooSlowly) {
  HttpOptions options;
  options.header_timeout = milliseconds(30);
  ServerFixture server(options, echo);
  RawClient silent(server.port()), half(server.port());
  half.send("GET / HT");
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_EQ(half.read_all(), "");
}

TEST(HttpServer, ClosesAnIdleConnection) {
  HttpOptions options;
  options.idle_timeout = milliseconds(30);
  ServerFixture server(options, echo);
  RawClient client(server.port());
  client.send(get("/one"));
  EXPECT_THAT(client.read_all(), HasSubstr("GET /one "));
}

TEST(HttpServer, AnExceptionOfTheHandlerIsA500WithoutItsText) {
  ServerFixture server({}, [](HttpRequest, std::shared_ptr<HttpExchange>) {
    throw std::runtime_error("secret detail");
  });
  RawClient client(server.port());
  client.send(get("/x", "Connection: close\r\n"));
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(answer, testing::Not(HasSubstr("secret")));
}

TEST(HttpServer, ConnectionsOverTheCapAreClosed) {
  HttpOptions options;
  options.max_connections = 1;
  ServerFixture server(options, echo);
  RawClient first(server.port());
  first.send(get("/one"));
  first.read_until("GET /one ");
  RawClient second(server.port());
  EXPECT_EQ(second.read_all(), "");
  first.send(get("/two"));
  EXPECT_THAT(first.read_until("GET /two "), HasSubstr("GET /two "));
}

TEST(HttpServer, AnAddressInUseIsAnErrorThatNamesIt) {
  ServerFixture server({}, echo);
  IoContext io;
  HttpOptions options;
  options.port = server.port();
  const auto second = HttpServer::listen(io, options, echo);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(server.port())));
  options.host = "no.such.host";
  const auto bad_host = HttpServer::listen(io, options, echo);
  ASSERT_FALSE(bad_host);
  EXPECT_EQ(bad_host.error().field, "--host");
}

}  // namespace
}  // namespace refrain
