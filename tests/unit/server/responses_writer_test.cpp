// Answers of /v1/responses: items with their statuses, and the conversation that is kept.
#include "runtime/server/responses_writer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

class ResponsesWriterTest : public testing::Test {
 protected:
  ResponsesWriterTest() {
    head_.id = "resp_1";
    ResponsesRequest request;
    request.messages = OrderedJson::parse(R"([{"role": "user", "content": "0"}])");
    request.told = Json::object();
    writer_ = make_responses_writer(std::move(request),
                                    [this](const Json& response, const OrderedJson& messages) {
                                      response_ = response;
                                      messages_ = messages;
                                    })(head_, {}, tokenizer_);
    events_ = writer_->begin({});
  }
  void tell(const std::string& text, std::vector<ToolCallPart> calls,
            FinishReason finish = FinishReason::kNone) {
    ChoiceText part;
    part.text = text;
    part.calls = std::move(calls);
    part.finish = finish;
    events_ += writer_->part(part, 0);
    if (finish != FinishReason::kNone) events_ += writer_->end({});
  }
  // The items that events said were done, each as "type status".
  std::vector<std::string> items_done() const {
    std::vector<std::string> items;
    std::istringstream lines(events_);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("data: ")) continue;
      const Json event = Json::parse(line.substr(6));
      if (event["type"] == "response.output_item.done") items.push_back(told(event["item"]));
    }
    return items;
  }
  std::vector<std::string> items_of_answer() const {
    std::vector<std::string> items;
    for (const Json& item : response_["output"]) items.push_back(told(item));
    return items;
  }
  static std::string told(const Json& item) {
    return item.at("type").get<std::string>() + " " + item.at("status").get<std::string>();
  }

  const text::Tokenizer tokenizer_ = *text::Tokenizer::load("tests/fixtures/models/qwen3");
  AnswerHead head_;
  std::unique_ptr<AnswerWriter> writer_;
  std::string events_;
  Json response_;
  OrderedJson messages_;
};

using Items = std::vector<std::string>;

TEST_F(ResponsesWriterTest, ACallThatIsCutIsIncompleteAndNotKept) {
  tell("Let me see.", {});
  tell("", {{0, "c1", "f", R"({"x": 1})"}});
  tell("", {{1, "c2", "f", R"({"x":)"}}, FinishReason::kLength);
  const Items expected = {"message completed", "function_call completed",
                          "function_call incomplete"};
  EXPECT_EQ(items_done(), expected);
  EXPECT_EQ(items_of_answer(), expected);
  EXPECT_EQ(response_["status"], "incomplete");
  ASSERT_EQ(messages_.size(), 2u);
  EXPECT_EQ(messages_[1]["content"], "Let me see.");
  ASSERT_EQ(messages_[1]["tool_calls"].size(), 1u);
  EXPECT_EQ(messages_[1]["tool_calls"][0]["id"], "c1");
  const OrderedJson next = {{"messages", messages_}};
  EXPECT_TRUE(parse_chat_request(next)) << "a later response goes on from it";
}

TEST_F(ResponsesWriterTest, ACallThatBreaksOffKeepsItsArgumentsBeforeTheTextBehindThem) {
  tell("", {{0, "c1", "f", R"({"x")"}});
  tell("oh", {{0, "", "", ": "}}, FinishReason::kStop);
  const Items expected = {"function_call incomplete", "message completed"};
  EXPECT_EQ(items_done(), expected);
  EXPECT_EQ(items_of_answer(), expected);
  EXPECT_EQ(response_["output"][0]["arguments"], R"({"x": )");
  EXPECT_EQ(messages_[1].dump(), R"({"role":"assistant","content":"oh"})");
}

TEST_F(ResponsesWriterTest, ACallWithoutArgumentsIsKept) {
  tell("", {{0, "c1", "f", ""}}, FinishReason::kStop);
  EXPECT_EQ(items_done(), Items{"function_call completed"});
  EXPECT_EQ(response_["status"], "completed");
  EXPECT_EQ(messages_[1]["tool_calls"].size(), 1u);
}

}  // namespace
}  // namespace refrain
