// Parts of the API server, each by itself: its routes, text work, prompts' tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "runtime/server/completion_session.h"
#include "runtime/server/pooling_session.h"
#include "runtime/server/prompt_tokens.h"
#include "runtime/server/route_table.h"
#include "runtime/server/text_work.h"
#include "runtime/text/tokenizer.h"
#include "tests/unit/server/fake_engine.h"

namespace refrain {
namespace {

using test::FakeEngine;
using test::FakeExchange;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RouteTable, FindsAPathBeforeWhatItIsBelow) {
  RouteTable table;
  table.add_below("/models/", {.method = "GET", .handle = {}});
  table.add("/models/load", {.method = "POST", .handle = {}});
  table.add("/models", {.method = "GET", .handle = {}, .access = RouteAccess::kOpen});
  EXPECT_STREQ(table.find("/models/load")->method, "POST");
  EXPECT_STREQ(table.find("/models/a/b")->method, "GET");
  EXPECT_EQ(table.find("/models")->access, RouteAccess::kOpen);
  EXPECT_EQ(table.find("/model"), nullptr);
  EXPECT_THAT(table.list(), ElementsAre("GET /models", "POST /models/load"));
}

class TextWorkTest : public testing::Test {
 protected:
  TextWorkTest() {
    engine_.options.max_queue = 1;
    engine_.options.worker.max_num_seqs = 1;
  }
  TextWork& work() {
    if (!work_) {
      work_.emplace(engine_.options, keys_, Replies(engine_, std::make_shared<Metrics>("tiny")), 1);
    }
    return *work_;
  }
  std::shared_ptr<FakeExchange> post(TextWork::Work todo) {
    auto exchange = std::make_shared<FakeExchange>();
    HttpRequest request;
    work().post(request, exchange, std::move(todo));
    return exchange;
  }

  FakeEngine engine_;
  ApiKeys keys_ = *ApiKeys::load(engine_.options);
  std::optional<TextWork> work_;
};

TEST_F(TextWorkTest, AnswersWithAnErrorWhenTheWorkThrows) {
  const auto exchange =
      post([](HttpRequest, KeyLease, const Exchange&) { throw std::runtime_error("broken"); });
  EXPECT_EQ(exchange->wait().status, 500);
  const auto memory = post([](HttpRequest, KeyLease, const Exchange&) { throw std::bad_alloc(); });
  EXPECT_EQ(memory->wait().status, 503);
}

TEST_F(TextWorkTest, RefusesMoreThanMayWait) {
  std::promise<void> begun, go;
  const auto reply = [](HttpRequest, KeyLease, const Exchange& exchange) {
    exchange->reply(200, "text/plain", "");
  };
  const auto first = post([&](HttpRequest, KeyLease, const Exchange& exchange) {
    begun.set_value();
    go.get_future().wait();
    exchange->reply(200, "text/plain", "");
  });
  begun.get_future().wait();
  const auto second = post(reply);
  EXPECT_EQ(post(reply)->wait().status, 429);
  go.set_value();
  EXPECT_EQ(first->wait().status, 200);
  EXPECT_EQ(second->wait().status, 200);
}

// what a client that left has waiting is not computed.
TEST_F(TextWorkTest, LeavesOutTheWorkOfClientsThatHaveGone) {
  std::promise<void> begun, go;
  const auto first = post([&](HttpRequest, KeyLease, const Exchange& exchange) {
    begun.set_value();
    go.get_future().wait();
    exchange->reply(200, "text/plain", "");
  });
  begun.get_future().wait();
  post([](HttpRequest, KeyLease, const Exchange&) { FAIL() << "it ran"; })->leave();
  std::promise<void> long_begun, long_go;
  const auto turn = std::make_shared<FakeExchange>();
  work().post_long_turn("", turn, [&] {
    long_begun.set_value();
    long_go.get_future().wait();
  });
  long_begun.get_future().wait();
  const auto left = std::make_shared<FakeExchange>();
  work().post_long_turn("", left, [] { FAIL() << "it ran"; });
  left->leave();
  long_go.set_value();
  go.set_value();
  EXPECT_EQ(first->wait().status, 200);
  work().end();
}

TEST_F(TextWorkTest, EndsWithAnAnswerForEveryRequest) {
  std::promise<void> begun, go;
  std::shared_ptr<FakeExchange> turn = std::make_shared<FakeExchange>();
  post([&](HttpRequest, KeyLease, const Exchange&) {
    begun.set_value();
    go.get_future().wait();
    while (!work().stopped()) std::this_thread::yield();
    work().post_long_turn("", turn, [] {});
  });
  begun.get_future().wait();
  const auto waits = post([](HttpRequest, KeyLease, const Exchange&) { FAIL() << "it ran"; });
  go.set_value();
  work().end();
  EXPECT_EQ(waits->wait().status, 503);
  EXPECT_EQ(turn->wait().status, 503);
}

TEST_F(TextWorkTest, MakesAnswersThatAreThereAfterItStops) {
  test::HeldTextThread text_thread(work());
  const auto last = [&](const std::shared_ptr<FakeExchange>& exchange) {
    work().post_last("", exchange, [exchange] { exchange->reply(200, "text/plain", ""); });
    return exchange;
  };
  const auto made = last(std::make_shared<FakeExchange>());
  work().stop();
  text_thread.go();
  EXPECT_EQ(made->wait().status, 200);
  const auto broken = std::make_shared<FakeExchange>();
  work().post_last("", broken, [] { throw std::bad_alloc(); });
  EXPECT_EQ(broken->wait().status, 503);
  work().end();
  EXPECT_EQ(last(std::make_shared<FakeExchange>())->wait().status, 503);
}

// Sessions of three prompts, the first of which fails while the second is submitted: its output's
// thread waits for nobody, and what was submitted meanwhile is cancelled.
class SubmitsMany : public testing::Test {
 protected:
  SubmitsMany() {
    engine_.options.worker.max_model_len = 64;
    engine_.options.served_model_names = {"tiny"};
    engine_.takes = [this](OutputSink sink) {
      sinks_.push_back(std::move(sink));
      if (sinks_.size() == 2) {
        RequestOutput broken;
        broken.error = Error{ErrorCode::kInternal, "broken", {}};
        auto told = std::async(std::launch::async, [&] { sinks_[0](broken); });
        EXPECT_EQ(told.wait_for(std::chrono::seconds(30)), std::future_status::ready);
      }
      return static_cast<RequestId>(sinks_.size());
    };
    head_.model = "tiny";
  }
  template <class Session>
  void expect_the_rest_is_left_out(const std::shared_ptr<Session>& session) {
    session->start({{1}, {2}, {3}});
    EXPECT_EQ(exchange_->wait().status, 500);
    EXPECT_EQ(sinks_.size(), 2u);
    EXPECT_THAT(engine_.cancelled, ElementsAre(1, 2));
  }
  KeyLease lease() { return KeyLease(ApiKeys::load(engine_.options)->find("")); }

  FakeEngine engine_;
  std::vector<OutputSink> sinks_;
  AnswerHead head_;
  const std::shared_ptr<FakeExchange> exchange_ = std::make_shared<FakeExchange>();
  const std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>("tiny");
};

TEST_F(SubmitsMany, CompletionsHearOfOneMeanwhile) {
  expect_the_rest_is_left_out(std::make_shared<CompletionSession>(
      ApiRequest(), head_, engine_,
      std::make_shared<const text::Tokenizer>(
          *text::Tokenizer::load("tests/fixtures/models/qwen3")),
      metrics_, exchange_, lease(), std::weak_ptr<TextWork>(), make_openai_writer));
}

TEST_F(SubmitsMany, PromptsThatPoolHearOfOneMeanwhile) {
  ApiRequest request;
  request.pooling.emplace();
  expect_the_rest_is_left_out(std::make_shared<PoolingSession>(
      std::move(request), head_, engine_, metrics_, exchange_, lease(), std::weak_ptr<TextWork>()));
}

class PromptTokensTest : public testing::Test {
 protected:
  PromptTokensTest() {
    text_.tokenizer = std::make_shared<const text::Tokenizer>(
        *text::Tokenizer::load("tests/fixtures/models/qwen3"));
  }
  // The tokens of a completion's only prompt.
  Result<std::vector<TokenId>> tokens(ApiRequest request) {
    std::vector<std::vector<TokenId>> ids;
    REFRAIN_ASSIGN_OR_RETURN(const bool all, PromptTokens(text_, 8, stop_).take_some(request, ids));
    EXPECT_TRUE(all);
    return ids.at(0);
  }

  TextSide text_;
  std::atomic<bool> stop_{false};
};

TEST_F(PromptTokensTest, KeepTheLastOnesOfAPromptThatMayBeCut) {
  ApiRequest request;
  request.prompts = {std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 8, 9}};
  EXPECT_EQ(tokens(request)->size(), 9U);  // what is too long the engine says
  request.truncate_prompt_tokens = 2;
  EXPECT_THAT(*tokens(request), ElementsAre(8, 9));
  request.truncate_prompt_tokens = -1;  // what leaves room for the answer
  request.max_tokens = 5;
  EXPECT_THAT(*tokens(request), ElementsAre(7, 8, 9));
  request.truncate_prompt_tokens = 9;
  EXPECT_THAT(tokens(request).error().message, HasSubstr("more than max_model_len (8)"));
}

TEST_F(PromptTokensTest, TakeLongTextsInTurns) {
  ApiRequest request;
  request.truncate_prompt_tokens = 1;
  // 8 tokens at most of so many bytes: as long as a text may be.
  const size_t longest = 8 * text_.tokenizer->longest_token_bytes();
  request.prompts.assign((size_t{1} << 20) / longest + 2, std::string(longest, 'a'));
  std::vector<std::vector<TokenId>> ids;
  const PromptTokens tokens(text_, 8, stop_);
  EXPECT_EQ(tokens.take_some(request, ids), false);
  EXPECT_LT(ids.size(), request.prompts.size());
  EXPECT_EQ(tokens.take_some(request, ids), true);
  EXPECT_EQ(ids.size(), request.prompts.size());
}

TEST_F(PromptTokensTest, EndWhenTheServerDoes) {
  stop_ = true;
  const PromptTokens tokens(text_, 8, stop_);
  EXPECT_EQ(tokens.encode("text", true).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace refrain
