#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <utility>

#include "tests/unit/server/http_client.h"

namespace refrain {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Gives each request's exchange to the test.
class HeldExchange {
 public:
  HttpHandler handler() {
    return [this](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
      promise_.set_value(std::move(exchange));
    };
  }
  std::shared_ptr<HttpExchange> take() {
    auto exchange = promise_.get_future().get();
    promise_ = {};
    return exchange;
  }

 private:
  std::promise<std::shared_ptr<HttpExchange>> promise_;
};

TEST(HttpStream, PartsArriveAsTheyAreWritten) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  exchange->begin_stream(200, "text/event-stream", {{"X-Extra", "1"}});
  exchange->write("data: 1\n\n");
  const std::string begin = client.read_until("data: 1\n\n\r\n");
  EXPECT_THAT(begin, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(begin, HasSubstr("X-Extra: 1"));
  EXPECT_THAT(begin, HasSubstr("9\r\ndata: 1"));
  EXPECT_EQ(server.server().answering(), 1);
  exchange->write("data: 2\n\n");
  exchange->end_stream();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("data: 2"));
}

TEST(HttpStream, TheConnectionServesOnAfterwards) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  for (int i = 0; i < 2; ++i) {
    client.send(get("/x"));
    const auto exchange = held.take();
    exchange->begin_stream(200, "text/plain");
    exchange->write("part");
    exchange->end_stream();
    exchange->write("too late");
    exchange->reply(500, "text/plain", "too late");
    const std::string answer = client.read_until("0\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(answer, testing::Not(HasSubstr("late")));
  }
}

TEST(HttpStream, OldClientsGetItWithoutChunks) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send("GET /x HTTP/1.0\r\n\r\n");
  const auto exchange = held.take();
  exchange->begin_stream(200, "text/plain");
  exchange->write("one ");
  exchange->write("two");
  exchange->end_stream();
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\none two"));
  EXPECT_THAT(answer, testing::Not(HasSubstr("chunked")));
}

TEST(HttpStream, ALeavingClientIsNoticed) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  std::promise<void> left;
  exchange->on_disconnect([&left] { left.set_value(); });
  client.close();
  EXPECT_EQ(left.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

// The watch is on before the handler is set: it must be called all the same.
TEST(HttpStream, AClientThatLeftBeforeAnyoneListenedIsNoticed) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  client.close();
  exchange->begin_stream(200, "text/plain");
  std::promise<void> left;
  exchange->on_disconnect([&left] { left.set_value(); });
  EXPECT_EQ(left.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(HttpStream, APipelinedRequestDoesNotHideThatTheClientLeft) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  std::promise<void> left;
  exchange->on_disconnect([&left] { left.set_value(); });
  client.send(get("/next"));
  client.close();
  EXPECT_EQ(left.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(HttpStream, AnEndedAnswerHasNoDisconnect) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  std::atomic<int> calls{0};
  {
    RawClient client(server.port());
    client.send(get("/x"));
    const auto exchange = held.take();
    exchange->on_disconnect([&calls] { ++calls; });
    exchange->reply(200, "text/plain", "done");
    client.read_until("done");
    client.send(get("/y"));  // answered after the first one's end has been dealt with
    held.take()->reply(200, "text/plain", "again");
    client.read_until("again");
  }
  EXPECT_EQ(calls, 0);
}

// A stream of which 100,000 bytes may wait, to a client whose socket holds little.
struct CappedStream {
  CappedStream() { client.send(get("/x")); }
  static HttpOptions options() {
    HttpOptions options;
    options.max_buffered_bytes = 100'000;
    return options;
  }
  HeldExchange held;
  ServerFixture server{options(), held.handler()};
  RawClient client{server.port(), 4096};
};

// a client that does not read is cut off at its cap.
TEST(HttpStream, ASlowReaderIsCutOffAtTheCap) {
  CappedStream stream;
  const auto exchange = stream.held.take();
  std::promise<void> cut;
  exchange->on_disconnect([&cut] { cut.set_value(); });
  exchange->begin_stream(200, "text/plain");
  auto gone = cut.get_future();
  const std::string chunk(1 << 16, 'x');
  int written = 0;
  // More than any socket buffer holds.
  for (; written < 4096 && gone.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
       ++written) {
    exchange->write(chunk);
  }
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(HttpStream, AChunkAboveTheCapIsNoSlowReader_R18) {
  CappedStream stream;
  const auto exchange = stream.held.take();
  exchange->begin_stream(200, "text/plain");
  const std::string chunk(16 << 20, 'x');  // more than any socket buffer holds
  exchange->write(chunk);
  exchange->write("last");
  EXPECT_GT(stream.client.read_until("last").size(), chunk.size());
}

TEST(HttpStream, StoppingLetsTheAnswerEndAndThenCloses) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  server.server().stop_accepting();
  exchange->reply(200, "text/plain", "last words");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, HasSubstr("last words"));
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
}

TEST(HttpStream, CloseCutsEveryConnection) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  std::promise<void> left;
  exchange->on_disconnect([&left] { left.set_value(); });
  server.server().close();
  EXPECT_EQ(client.read_all(), "");
  EXPECT_EQ(left.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

// Also before anything was written: the answer may begin so.
TEST(HttpStream, AnAnswerThatWaitsIsAskedForAWordAgainAndAgain) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  client.send(get("/x"));
  const auto exchange = held.take();
  bool begun = false;  // the connection's thread alone
  exchange->on_idle(std::chrono::milliseconds(1), [&begun, answer = exchange.get()] {
    if (!std::exchange(begun, true)) answer->begin_stream(200, "text/event-stream");
    answer->write(": keep-alive\n\n");
  });
  for (int i = 0; i < 3; ++i) client.read_until("e\r\n: keep-alive\n\n\r\n");
  exchange->write("data: 1\n\n");
  exchange->end_stream();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("data: 1"));
}

TEST(HttpStream, NobodyIsAskedForAWordBeforeItsTimeOrAfterTheAnswer) {
  HeldExchange held;
  ServerFixture server({}, held.handler());
  RawClient client(server.port());
  std::atomic<int> asked{0};
  for (const auto after : {std::chrono::milliseconds(3'600'000), std::chrono::milliseconds(0)}) {
    client.send(get("/x"));
    const auto exchange = held.take();
    if (after.count() == 0) exchange->reply(200, "text/plain", "whole");
    exchange->on_idle(after, [&asked] { ++asked; });
    if (after.count() > 0) exchange->reply(200, "text/plain", "whole");
    client.read_until("whole");
  }
  client.send(get("/x"));  // answered after all of the above has been dealt with
  held.take()->reply(200, "text/plain", "last");
  client.read_until("last");
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace refrain
