#include "runtime/load/load_client.h"

#include <gmock/gmock.h>

#include "runtime/load/event_reader.h"

namespace refrain {
namespace {

using ::testing::HasSubstr;

struct Fed {
  int events = 0;
  EventReader reader{[this] { ++events; }};
};

TEST(EventReader, CountsEventsThatCarryTokensHoweverTheyAreCut) {
  const std::string stream =
      "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":null}\n\n"
      ": keep-alive\n\n"
      "data:{\"choices\":[{\"text\":\"\"}]}\r\n\r\n"
      "data: {\"choices\":[{\"text\":\"c\",\"finish_reason\":\"length\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":4}}\n\n"
      "data: [DONE]\n\n";
  for (const size_t size : {size_t{1}, size_t{7}, size_t{64}, stream.size()}) {
    Fed fed;
    for (size_t at = 0; at < stream.size(); at += size) {
      fed.reader.feed(std::string_view(stream).substr(at, size));
    }
    EXPECT_EQ(fed.events, 3) << size;
    EXPECT_EQ(fed.reader.input_tokens(), 7);
    EXPECT_EQ(fed.reader.output_tokens(), 4);
    EXPECT_TRUE(fed.reader.done());
    EXPECT_EQ(fed.reader.error(), "");
  }
}

TEST(EventReader, WithoutUsageEventsCountForTokens) {
  Fed fed;
  fed.reader.feed(
      "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n");
  EXPECT_EQ(fed.reader.output_tokens(), 2);
  EXPECT_FALSE(fed.reader.done());
}

TEST(EventReader, AChatsRoleAloneIsNoToken) {
  Fed fed;
  fed.reader.feed(
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
      "\"finish_reason\":null}]}\n\n");
  EXPECT_EQ(fed.events, 0);
  fed.reader.feed(
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning\":\"Hm\"}}]}\n\n");
  EXPECT_EQ(fed.events, 2);
}

TEST(EventReader, AnErrorInTheStreamIsKept) {
  Fed fed;
  fed.reader.feed("data: {\"error\":{\"message\":\"the device is gone\",\"code\":500}}\n\n");
  EXPECT_EQ(fed.reader.error(), "the device is gone");
  EXPECT_EQ(fed.events, 0);
  Fed broken;
  broken.reader.feed("data: {\"usage\": nonsense\n\n");
  EXPECT_THAT(broken.reader.error(), HasSubstr("no JSON"));
}

TEST(ErrorText, IsTheSentenceOfAnOpenAiErrorOrTheBeginningOfAPage) {
  EXPECT_EQ(error_text("{\"error\":{\"message\":\"no\"}}"), "no");
  EXPECT_EQ(error_text("{\"object\":\"error\",\"message\":\"old\"}"), "old");
  EXPECT_EQ(error_text("<html>bad gateway"), "<html>bad gateway");
}

TEST(BaseUrl, IsReadOrRefusedByName) {
  const auto plain = parse_base_url("http://example.org/");
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->tls);
  EXPECT_EQ(plain->host, "example.org");
  EXPECT_EQ(plain->port, "80");
  EXPECT_EQ(plain->path, "");
  const auto secure = parse_base_url("https://[::1]:8443/openai/");
  ASSERT_TRUE(secure);
  EXPECT_TRUE(secure->tls);
  EXPECT_EQ(secure->host, "::1");
  EXPECT_EQ(secure->port, "8443");
  EXPECT_EQ(secure->path, "/openai");
  for (const char* wrong : {"", "example.org", "ftp://x", "http://", "http://x:y", "http://x:"}) {
    const auto url = parse_base_url(wrong);
    ASSERT_FALSE(url) << wrong;
    EXPECT_EQ(url.error().field, "--base-url");
  }
}

}  // namespace
}  // namespace refrain
