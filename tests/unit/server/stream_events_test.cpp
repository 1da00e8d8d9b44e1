#include "runtime/server/stream_events.h"

#include <gtest/gtest.h>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

class StreamEventsTest : public testing::Test {
 protected:
  StreamEventsTest() : tokenizer_(*text::Tokenizer::load("tests/fixtures/models/qwen3")) {
    part_.text = "ab";
    part_.tokens = {{64, -0.5f, {{64, -0.5f}, {65, -1.5f}}}, {65, -0.25f, {{65, -0.25f}}}};
    head_ = {"id-1", "a \"model\"", 17, false, false};
  }
  // The event's JSON; an event is one line and an empty one.
  static Json read(const std::string& event) {
    EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
    EXPECT_EQ(event.find('\n'), event.size() - 2) << event;
    return Json::parse(event.substr(6));
  }
  Json chunk(int64_t offset = 0) const {
    return read(StreamEvents(head_, tokenizer_).chunk(part_, offset));
  }

  text::Tokenizer tokenizer_;
  ChoiceText part_;
  AnswerHead head_;
};

TEST_F(StreamEventsTest, ChunksHaveOpenAIsShape) {
  part_.index = 3;
  EXPECT_EQ(chunk(), Json::parse(R"({"id": "id-1", "object": "text_completion", "created": 17,
      "model": "a \"model\"", "choices": [{"index": 3, "text": "ab", "finish_reason": null,
      "logprobs": null}]})"));
  head_.chat = true;
  EXPECT_EQ(chunk(), Json::parse(R"({"id": "id-1", "object": "chat.completion.chunk",
      "created": 17, "model": "a \"model\"", "choices": [{"index": 3, "delta": {"content": "ab"},
      "finish_reason": null, "logprobs": null}]})"));
  part_.text.clear();
  part_.finish = FinishReason::kLength;
  const Json last = chunk();
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(last["choices"][0]["stop_reason"].is_null());
}

TEST_F(StreamEventsTest, DeltasTellReasoningAndCalls) {
  head_.chat = true;
  part_.text.clear();
  part_.reasoning = "Hm\n";
  EXPECT_EQ(chunk()["choices"][0]["delta"],
            Json::parse(R"({"reasoning": "Hm\n", "reasoning_content": "Hm\n"})"));
  part_.reasoning.clear();
  part_.calls = {{0, "id-a", "f", "{\""}, {1, {}, {}, "}"}};
  part_.finish = FinishReason::kStop;
  part_.called = true;
  const Json last = chunk()["choices"][0];
  EXPECT_EQ(last["delta"], Json::parse(R"({"tool_calls": [
      {"index": 0, "id": "id-a", "type": "function", "function": {"name": "f", "arguments": "{\""}},
      {"index": 1, "function": {"arguments": "}"}}]})"));
  EXPECT_EQ(last["finish_reason"], "tool_calls");
}

TEST_F(StreamEventsTest, ChunksTellOffsetsAndOnlyTheLastAReason) {
  head_.logprobs = true;
  EXPECT_TRUE(chunk()["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(chunk()["choices"][0].contains("stop_reason"));
  part_.finish = FinishReason::kStop;
  part_.stop_reason = "END\n";
  const Json last = chunk(10);
  EXPECT_EQ(last["choices"][0]["logprobs"]["text_offset"][0], 10);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last["choices"][0]["stop_reason"], "END\n");
  head_.chat = true;
  EXPECT_EQ(chunk()["choices"][0]["logprobs"]["content"][1]["logprob"], -0.25f);
}

// vLLM's places: a chat's prompt beside the choices of its first event, a completion's in the first
// part of each choice.
TEST_F(StreamEventsTest, TokenIdsComeWithTheirPartAndThePromptOnce) {
  head_.token_ids = true;
  EXPECT_EQ(chunk()["choices"][0]["token_ids"], (Json{64, 65}));
  EXPECT_FALSE(chunk()["choices"][0].contains("prompt_token_ids"));
  part_.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{7, 8});
  EXPECT_EQ(chunk()["choices"][0]["prompt_token_ids"], (Json{7, 8}));
  head_.chat = true;
  const StreamEvents events(head_, tokenizer_);
  EXPECT_EQ(read(events.role(part_))["prompt_token_ids"], (Json{7, 8}));
  part_.prompt.reset();
  EXPECT_FALSE(read(events.role(part_)).contains("prompt_token_ids"));
}

TEST_F(StreamEventsTest, RoleUsageErrorAndEnd) {
  head_.chat = true;
  const StreamEvents events(head_, tokenizer_);
  part_.index = 1;
  const Json role = read(events.role(part_));
  EXPECT_EQ(role["choices"][0]["index"], 1);
  EXPECT_EQ(role["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_FALSE(role.contains("usage"));
  const Json so_far = {{"prompt_tokens", 3}, {"completion_tokens", 2}, {"total_tokens", 5}};
  part_.usage = Usage{3, 2};
  EXPECT_EQ(read(events.role(part_))["usage"], so_far);
  EXPECT_EQ(chunk()["usage"], so_far);
  const Json usage = read(events.usage({3, 2, 1}));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 5);
  EXPECT_EQ(StreamEvents::error("{}"), "data: {}\n\n");
  EXPECT_EQ(StreamEvents::done(), "data: [DONE]\n\n");
}

// Every text becomes the JSON string that the library writes, so what is copied as it is must be
// what needs no escape.
TEST_F(StreamEventsTest, TextIsEscapedAsJsonIs) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = {'a', static_cast<char>(byte), 'b'};
    std::string written;
    append_json_string(written, text);
    EXPECT_EQ(written, dump(Json(text))) << "byte " << byte;
  }
  std::string written;
  append_json_string(written, "\xe2\x82\xac\xff");
  EXPECT_EQ(written, "\"\xe2\x82\xac\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace refrain
