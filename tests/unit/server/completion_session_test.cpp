// What a completion's session makes of an engine's outputs.
#include "runtime/server/completion_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/tokenizer.h"
#include "tests/unit/server/fake_engine.h"

namespace refrain {
namespace {

using test::FakeEngine;
using test::FakeExchange;
using testing::HasSubstr;
using testing::Not;

class CompletionSessionTest : public testing::Test {
 protected:
  CompletionSessionTest() {
    engine_.options.worker.max_model_len = 64;
    engine_.options.served_model_names = {"tiny"};
    engine_.takes = [this](OutputSink sink) {
      sinks_.push_back(std::move(sink));
      return static_cast<RequestId>(sinks_.size());
    };
  }
  // With a prompt of one token.
  void start(const std::string& body) { start(*parse_completion_request(*parse_json(body))); }
  void start(ApiRequest request) {
    AnswerHead head;
    head.model = "tiny";
    head.logprobs = request.logprobs;
    head.num_logprobs = request.sampling.logprobs;
    head.echo = request.echo;
    head.token_ids = request.return_token_ids;
    std::make_shared<CompletionSession>(std::move(request), head, engine_, tokenizer_, metrics_,
                                        exchange_, KeyLease(keys_.find("")), work_,
                                        make_openai_writer)
        ->start({{1}});
  }
  // An output of so many tokens, `of` all that there are so far.
  static RequestOutput output_of(size_t tokens, int64_t of, FinishReason finish) {
    RequestOutput output;
    output.tokens.resize(tokens);
    output.text = "x";
    output.finish = finish;
    output.prompt_tokens = 1;
    output.output_tokens = of;
    return output;
  }

  FakeEngine engine_;
  const ApiKeys keys_ = *ApiKeys::load(engine_.options);
  std::vector<OutputSink> sinks_;
  const std::shared_ptr<FakeExchange> exchange_ = std::make_shared<FakeExchange>();
  const std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>("tiny");
  const std::shared_ptr<const text::Tokenizer> tokenizer_ = std::make_shared<const text::Tokenizer>(
      *text::Tokenizer::load("tests/fixtures/models/qwen3"));
  std::shared_ptr<TextWork> work_ =
      std::make_shared<TextWork>(engine_.options, keys_, Replies(engine_, metrics_), 1);
};

// The thread of a connection does not write thousands of log-probabilities.
TEST_F(CompletionSessionTest, ALongAnswerIsWrittenOnATextThread) {
  test::HeldTextThread text_thread(*work_);
  start(R"({"prompt": "a", "logprobs": 0, "max_tokens": 60})");
  sinks_.at(0)(output_of(2000, 2000, FinishReason::kLength));
  EXPECT_FALSE(exchange_->answered()) << "the only text thread is busy";
  text_thread.go();
  const HttpReply reply = exchange_->wait();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["choices"][0]["logprobs"]["tokens"].size(), 2000U);
}

TEST_F(CompletionSessionTest, ALongAnswerOfAServerThatHasGoneIsAnError) {
  start(R"({"prompt": "a", "logprobs": 0, "max_tokens": 60})");
  work_.reset();
  sinks_.at(0)(output_of(2000, 2000, FinishReason::kLength));
  EXPECT_EQ(exchange_->wait().status, 503);
}

TEST_F(CompletionSessionTest, AnEchoAloneHasNoTokensOfItsOwn) {
  start(R"({"prompt": "a", "echo": true, "max_tokens": 0})");
  sinks_.at(0)(output_of(1, 1, FinishReason::kLength));
  const Json whole = Json::parse(exchange_->wait().body);
  EXPECT_EQ(whole["choices"][0]["text"], "a");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 0);
}

TEST_F(CompletionSessionTest, AStreamedEchoAloneHasNoTokensOfItsOwn) {
  start(R"({"prompt": "a", "echo": true, "max_tokens": 0, "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true}})");
  sinks_.at(0)(output_of(1, 1, FinishReason::kLength));
  EXPECT_THAT(exchange_->written(), HasSubstr(R"("text":"a")"));
  EXPECT_THAT(exchange_->written(), HasSubstr(R"("completion_tokens":0)"));
  EXPECT_THAT(exchange_->written(), Not(HasSubstr(R"("completion_tokens":1)")));
}

TEST_F(CompletionSessionTest, AWholeAnswerThatTellsTooMuchEnds_R24) {
  ApiRequest request = *parse_completion_request(*parse_json(R"({"prompt": "a", "logprobs": 3})"));
  request.max_tokens.reset();  // what fits, as of chats
  start(std::move(request));
  sinks_.at(0)(output_of(size_t{1} << 20, 1 << 20, FinishReason::kNone));
  EXPECT_THAT(engine_.cancelled, testing::IsEmpty());
  sinks_.at(0)(output_of(1, (1 << 20) + 1, FinishReason::kNone));
  ASSERT_TRUE(exchange_->answered());
  const HttpReply reply = exchange_->wait();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "logprobs");
  EXPECT_THAT(engine_.cancelled, testing::ElementsAre(1));
}

}  // namespace
}  // namespace refrain
