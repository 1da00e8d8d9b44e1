#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

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

TEST(HttpServer, ARefusalIsOfItsOwnRequestAndNotOfTheOneBefore) {
  HttpOptions options;
  options.check_head = [](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.path == "/open") return std::nullopt;
    return HttpReply{401, "text/plain", "who are you", {}};
  };
  ServerFixture server(options, echo);
  RawClient after_head(server.port());
  after_head.send("HEAD /open HTTP/1.1\r\nHost: x\r\n\r\n");
  after_head.read_until("\r\n\r\n");
  after_head.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_THAT(after_head.read_all(), HasSubstr("who are you"));
  RawClient head(server.port());
  head.send("HEAD /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_THAT(head.read_all(),
              testing::AllOf(HasSubstr("401"), testing::Not(HasSubstr("who are you"))));
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

TEST(HttpServer, TheHeadIsCheckedBeforeTheBodyIsRead_R15) {
  std::atomic<int> handled{0};
  HttpOptions options;
  options.check_head = [](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.headers.contains("authorization")) return std::nullopt;
    return HttpReply{401, "text/plain", "who are you", {{"WWW-Authenticate", "Bearer"}}};
  };
  ServerFixture server(options, [&](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    ++handled;
    echo(std::move(request), std::move(exchange));
  });
  RawClient stranger(server.port());
  stranger.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  const std::string answer = stranger.read_all();  // not a byte of the body has been sent
  EXPECT_THAT(answer, testing::AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("who are you"),
                                     HasSubstr("WWW-Authenticate: Bearer")));
  EXPECT_EQ(handled, 0);
  RawClient known(server.port());
  known.send(post("/x", "body", "Authorization: yes\r\n"));
  EXPECT_THAT(known.read_until("POST /x body"), HasSubstr("POST /x body"));
}

TEST(HttpServer, EveryAnswerToARequestCarriesItsHeaders) {
  HttpOptions options;
  options.max_body_bytes = 100;
  options.answer_headers = [](const HttpRequest& request) {
    return HttpHeaders{{"X-Of", request.path}};
  };
  options.check_head = [](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.path != "/refused") return std::nullopt;
    return HttpReply{403, "text/plain", "no", {}};
  };
  ServerFixture server(options, [](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    if (request.path != "/stream") return echo(std::move(request), std::move(exchange));
    exchange->begin_stream(200, "text/plain");
    exchange->end_stream();
  });
  for (const std::string path : {"/whole", "/stream", "/refused"}) {
    RawClient client(server.port());
    client.send(post(path, "a"));
    EXPECT_THAT(client.read_until("X-Of: " + path + "\r\n"), HasSubstr("X-Of"));
  }
  RawClient large(server.port());  // the parser refuses it
  large.send("POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n" +
             std::string(200, 'a') + "\r\n0\r\n\r\n");
  EXPECT_THAT(large.read_all(),
              testing::AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("X-Of: /large\r\n")));
}

TEST(HttpServer, HeaderBytesThatDripDoNotMoveTheDeadline_R15) {
  HttpOptions options;
  options.header_timeout = milliseconds(200);
  ServerFixture server(options, echo);
  const auto begin = std::chrono::steady_clock::now();
  RawClient client(server.port());
  int sent = 0;
  // Each byte in time for an idle limit, all of them too late for a deadline.
  while (client.send("G") && ++sent < 3000) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(sent, 3000) << "the connection is still open";
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
}

TEST(HttpServer, ABodyThatDripsIsCutAtItsDeadline_R18) {
  HttpOptions options;
  options.body_timeout = milliseconds(200);
  std::atomic<int> handled{0};
  ServerFixture server(options, [&](HttpRequest, std::shared_ptr<HttpExchange>) { ++handled; });
  RawClient client(server.port());
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n");
  int sent = 0;
  while (client.send("a") && ++sent < 3000) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(sent, 3000);
  EXPECT_EQ(handled, 0);
  EXPECT_EQ(client.read_all(), "");
}

TEST(HttpServer, TlsFilesThatAreNoneAreErrorsThatNameTheOption) {
  IoContext io;
  const auto error_of = [&io](const char* certificate, const char* key) {
    HttpOptions options;
    options.port = 0;
    options.tls_certificate_file = certificate;
    options.tls_key_file = key;
    const auto server = HttpServer::listen({&io}, options, echo);
    EXPECT_FALSE(server);
    return server ? "" : server.error().message;
  };
  EXPECT_THAT(error_of("/no/such.pem", "/no/such.key"), HasSubstr("--ssl-certfile /no/such.pem"));
  EXPECT_THAT(error_of("README.md", "README.md"), HasSubstr("--ssl-certfile README.md"));
  EXPECT_THAT(error_of("README.md", ""), HasSubstr("--ssl-keyfile"));
  EXPECT_THAT(error_of("", "README.md"), HasSubstr("--ssl-certfile"));
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
  const auto second = HttpServer::listen({&io}, options, echo);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(server.port())));
  options.host = "no.such.host";
  const auto bad_host = HttpServer::listen({&io}, options, echo);
  ASSERT_FALSE(bad_host);
  EXPECT_EQ(bad_host.error().field, "--host");
}

// RFC 9112, sections 3.2 and 6.1: two readers of one connection must see the same requests.
TEST(HttpServer, AmbiguousFramingIsRefused_R15) {
  ServerFixture server({}, echo);
  for (const char* lines :
       {"Host: x\r\nTransfer-Encoding: gzip\r\nContent-Length: 2\r\n",
        "Host: x\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n",
        "Host: x\r\nTransfer-Encoding: xchunked\r\nContent-Length: 2\r\n",
        "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n",
        "Host: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 2\r\n", "Host: x\r\nHost: y\r\nContent-Length: 2\r\n"}) {
    RawClient client(server.port());
    client.send(std::string("POST / HTTP/1.1\r\n") + lines + "\r\n{}");
    EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 400")) << lines;
  }
  RawClient old(server.port());
  old.send("POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_THAT(old.read_all(), StartsWith("HTTP/1.0 200"));
}

TEST(HttpServer, TrailerFieldsCountAsFields_R15) {
  ServerFixture server({}, echo);
  for (const int fields : {5, 5000, 100000}) {
    RawClient client(server.port());
    std::string request =
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2\r\n{}\r\n0\r\n";
    for (int i = 0; i < fields; ++i) request += "X-" + std::to_string(i) + ": b\r\n";
    client.send(request + "\r\n");
    EXPECT_THAT(client.read_all(), StartsWith(fields == 5 ? "HTTP/1.1 200" : "HTTP/1.1 400"));
  }
}

// what is promised costs nothing, what is there is charged until the handler lets go of it.
TEST(HttpServer, BodiesAreChargedAsTheyArriveAndUntilTheyAreParsed_R24) {
  HttpOptions options;
  options.max_body_bytes_in_all = 200000;
  options.owner_of = [](const HttpRequest& request) {
    const auto at = request.headers.find("authorization");
    return at == request.headers.end() ? "" : at->second;
  };
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> charges;
  ServerFixture server(options, [&](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    const std::lock_guard lock(mutex);
    charges.push_back(std::move(request.body_charge));
    exchange->reply(200, "text/plain", "ok");
  });
  std::vector<std::unique_ptr<RawClient>> promises;
  for (int i = 0; i < 40; ++i) {
    promises.push_back(std::make_unique<RawClient>(server.port()));
    promises.back()->send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n");
  }
  const auto answer = [&](size_t bytes, const std::string& key) {
    RawClient client(server.port());
    client.send(
        post("/", std::string(bytes, 'a'), "Connection: close\r\nAuthorization: " + key + "\r\n"));
    return client.read_all();
  };
  const auto status = [&](size_t bytes, const std::string& key) {
    return answer(bytes, key).substr(9, 3);
  };
  EXPECT_EQ(status(70000, "one"), "200");
  EXPECT_THAT(answer(70000, "one"),
              HasSubstr("Retry-After: 1\r\n"));  // the first is not parsed yet
  EXPECT_EQ(status(70000, "one"), "503");
  EXPECT_EQ(status(30000, "one"), "200");
  EXPECT_EQ(status(40000, "one"), "503");  // it would have more than it leaves to others
  EXPECT_EQ(status(40000, "another"), "200");
  EXPECT_EQ(status(40000, "another"), "503");
  {
    const std::lock_guard lock(mutex);
    charges.clear();
  }
  EXPECT_EQ(status(70000, "one"), "200");
}

}  // namespace
}  // namespace refrain
