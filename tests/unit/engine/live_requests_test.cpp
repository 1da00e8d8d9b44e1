#include "runtime/engine/live_requests.h"

#include <gtest/gtest.h>

#include "tests/unit/engine/live_fixture.h"

namespace refrain {
namespace {

using testing::LiveRequestsTest;

TEST_F(LiveRequestsTest, TokensAreCountedAsGivenAndTheLastOneEndsTheRequest) {
  enter(1);
  enter(2);
  live.deliver({}, {event(1, 64), event(2, 65, StopCause::kEos)});
  EXPECT_EQ(live.at(1).given.count(), 4u);
  EXPECT_FALSE(live.contains(2));
  EXPECT_EQ(ended, (std::vector<RequestId>{2}));
  scheduler.run_until_idle();
  EXPECT_EQ(finishes, (std::map<RequestId, FinishReason>{{2, FinishReason::kStop}}));
  EXPECT_EQ(stats.snapshot().requests_total, 2u);
  EXPECT_EQ(stats.snapshot().requests_stopped, 1u);
}

TEST_F(LiveRequestsTest, AnEndIsToldOnceAndTakesTheDeadlineAlong) {
  enter(1);
  bool fired = false;
  live.at(1).deadline = executor->post_after(std::chrono::seconds(1), [&] { fired = true; });
  live.end(1, FinishReason::kAbort, std::nullopt);
  scheduler.advance(std::chrono::seconds(2));
  EXPECT_FALSE(fired);
  EXPECT_EQ(finishes[1], FinishReason::kAbort);
  EXPECT_ANY_THROW(live.end(1, FinishReason::kAbort, std::nullopt));
}

TEST_F(LiveRequestsTest, RequestsEndForTheirOwnFaultWithASentence) {
  enter(1);
  enter(2);
  live.end_without_logit(1);
  live.end_for_grammar(2);
  scheduler.run_until_idle();
  EXPECT_NE(errors[1].find("no finite logit for this request after 3 tokens"), std::string::npos);
  EXPECT_NE(errors[2].find("grammar of this answer cannot be followed"), std::string::npos);
  EXPECT_EQ(stats.snapshot().requests_without_logit, 1u);
  EXPECT_EQ(stats.snapshot().requests_with_slow_grammar, 1u);
}

TEST_F(LiveRequestsTest, ThoseThatAreAskedForComeOldestFirstAndAllCanEnd) {
  for (const RequestId id : {9, 4, 7}) enter(id, id == 4 ? LiveRequest::kNoGroup : 1);
  EXPECT_EQ(live.ids_where([](const LiveRequest& each) { return each.group == 1; }),
            (std::vector<RequestId>{7, 9}));
  live.end_all({ErrorCode::kUnavailable, "over", {}});
  EXPECT_EQ(ended, (std::vector<RequestId>{4, 7, 9}));
}

}  // namespace
}  // namespace refrain
