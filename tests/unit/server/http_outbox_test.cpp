#include "runtime/server/http_outbox.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace refrain {
namespace {

std::string text_of(const HttpOutbox::Buffers& buffers) {
  std::string text;
  for (const auto& buffer : buffers)
    text.append(static_cast<const char*>(buffer.data()), buffer.size());
  return text;
}

TEST(HttpOutbox, ChunksThatAreReadyLeaveTogether) {
  HttpOutbox out;
  out.chunk({}, "one");
  out.chunk({}, "twenty-six letters of text!");
  out.end({});
  const std::string all = "3\r\none\r\n1b\r\ntwenty-six letters of text!\r\n0\r\n\r\n";
  EXPECT_EQ(out.bytes(), all.size());
  const auto buffers = out.begin_write();
  EXPECT_EQ(buffers.size(), 1u);
  EXPECT_EQ(text_of(buffers), all);
  out.consume(all.size());
  EXPECT_TRUE(out.empty());
}

TEST(HttpOutbox, OldClientsGetBareBytes) {
  HttpOutbox out;
  const HttpAnswerForm old{10, false, false};
  out.chunk(old, "one ");
  out.chunk(old, "two");
  out.end(old);
  EXPECT_EQ(text_of(out.begin_write()), "one two");
}

// What a write is at must stay where it is and as it is, whatever comes meanwhile.
TEST(HttpOutbox, NothingIsAddedToWhatIsBeingWritten) {
  HttpOutbox out;
  const HttpAnswerForm old{10, false, false};
  out.chunk(old, "begin ");
  const auto buffers = out.begin_write();
  for (int i = 0; i < 1000; ++i) out.chunk(old, "more ");
  EXPECT_EQ(text_of(buffers), "begin ");
  out.consume(3);  // a part of it
  EXPECT_TRUE(text_of(out.begin_write()).starts_with("in more more "));
}

TEST(HttpOutbox, AnyCutOfWritesGivesTheBytesInOrder) {
  const HttpAnswerForm old{10, false, false};
  for (size_t most = 1; most < 50'000; most = most * 3 + 1) {
    HttpOutbox out;
    std::string expected, got;
    for (int i = 0; i < 40; ++i) {
      const std::string part(static_cast<size_t>(1 + i * 97), static_cast<char>('a' + i % 26));
      out.chunk(old, part);
      expected += part;
      const std::string ready = text_of(out.begin_write()).substr(0, most);
      got += ready;
      out.consume(ready.size());
    }
    while (!out.empty()) {
      const std::string ready = text_of(out.begin_write()).substr(0, most);
      got += ready;
      out.consume(ready.size());
    }
    EXPECT_EQ(got, expected) << "at most " << most << " bytes a write";
  }
}

TEST(HttpOutbox, AWholeAnswerSaysItsLengthAndAHeadOneHasNoBody) {
  for (const bool head_only : {false, true}) {
    HttpOutbox out;
    HttpReply reply;
    reply.body = std::string(40'000, 'x');
    reply.headers = {{"Retry-After", "3"}};
    out.reply({11, true, head_only}, std::move(reply));
    const std::string text = text_of(out.begin_write());
    EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n")) << text.substr(0, 200);
    EXPECT_NE(text.find("Content-Length: 40000\r\n"), std::string::npos);
    EXPECT_NE(text.find("Retry-After: 3\r\n"), std::string::npos);
    EXPECT_EQ(text.ends_with("x"), !head_only);
    EXPECT_EQ(text.size(), out.bytes());
  }
}

TEST(HttpOutbox, HeadersSayWhatBecomesOfTheConnection) {
  const auto head = [](const HttpAnswerForm& form, int status) {
    HttpOutbox out;
    HttpReply reply;
    reply.status = status;
    reply.content_type.clear();
    out.reply(form, std::move(reply));
    return text_of(out.begin_write());
  };
  const std::string empty = "Content-Length: 0\r\n\r\n";
  EXPECT_EQ(head({11, true, false}, 200), "HTTP/1.1 200 OK\r\n" + empty);
  EXPECT_EQ(head({11, false, false}, 431),
            "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n" + empty);
  EXPECT_EQ(head({10, true, false}, 200), "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + empty);
  EXPECT_EQ(head({10, false, false}, 200), "HTTP/1.0 200 OK\r\n" + empty);
  EXPECT_EQ(head({11, true, false}, 204), "HTTP/1.1 204 No Content\r\n\r\n");
}

TEST(HttpOutbox, WritesWhatTheSocketTakesWithoutWaiting) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  HttpOutbox out;
  const HttpAnswerForm old{10, false, false};
  for (int i = 0; i < 200; ++i) out.chunk(old, std::string(10'000, 'x'));
  EXPECT_TRUE(out.write_now(ends[0]));
  EXPECT_GT(out.bytes(), 0u);  // the rest of 2 MB, more than a socket holds
  EXPECT_LT(out.bytes(), 2'000'000u);
  ::close(ends[1]);
  EXPECT_FALSE(out.write_now(ends[0]));
  ::close(ends[0]);
}

}  // namespace
}  // namespace refrain
