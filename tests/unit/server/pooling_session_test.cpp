// How a request to a model that pools gets its answer.
#include "runtime/server/pooling_session.h"

#include <gtest/gtest.h>

#include "tests/unit/server/fake_engine.h"

namespace refrain {
namespace {

using test::FakeEngine;
using test::FakeExchange;

class PoolingSessionTest : public testing::Test {
 protected:
  PoolingSessionTest() {
    engine_.options.served_model_names = {"tiny"};
    engine_.takes = [this](OutputSink sink) {
      sink_ = std::move(sink);
      return RequestId{1};
    };
  }
  void start() {
    ApiRequest request;
    request.pooling.emplace();
    std::make_shared<PoolingSession>(std::move(request), AnswerHead(), engine_, metrics_, exchange_,
                                     KeyLease(keys_.find("")), work_)
        ->start({{1, 2}});
  }
  void pool() {
    RequestOutput output;
    output.finish = FinishReason::kLength;
    output.pooled = std::make_shared<const std::vector<float>>(std::vector<float>{3, 4});
    sink_(std::move(output));
  }

  FakeEngine engine_;
  OutputSink sink_;
  const ApiKeys keys_ = *ApiKeys::load(engine_.options);
  const std::shared_ptr<FakeExchange> exchange_ = std::make_shared<FakeExchange>();
  const std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>("tiny");
  std::shared_ptr<TextWork> work_ =
      std::make_shared<TextWork>(engine_.options, keys_, Replies(engine_, metrics_), 1);
};

TEST_F(PoolingSessionTest, MakesItsAnswerOnATextThread) {
  test::HeldTextThread text_thread(*work_);
  start();
  pool();  // comes back while the only text thread is busy
  EXPECT_FALSE(exchange_->answered());
  text_thread.go();
  const HttpReply reply = exchange_->wait();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["data"][0]["embedding"].size(), 2U);
}

TEST_F(PoolingSessionTest, OutlivesTheServerThatBeganIt) {
  start();
  work_.reset();
  pool();
  EXPECT_EQ(exchange_->wait().status, 503);
}

}  // namespace
}  // namespace refrain
