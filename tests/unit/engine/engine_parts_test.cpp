// The engine's parts without workers: what waits, what is overdue, what is told.
#include <gtest/gtest.h>

#include "runtime/engine/adapter_loads.h"
#include "runtime/engine/engine_reports.h"
#include "runtime/engine/request_deadlines.h"
#include "runtime/engine/request_placement.h"
#include "tests/unit/engine/live_fixture.h"

namespace refrain {
namespace {

using std::chrono::seconds;

class WaitingRequests : public testing::LiveRequestsTest {
 protected:
  void wait(RequestId id, AdapterId adapter = 0) {
    enter(id);
    live.at(id).adapter = adapter;
    placement.route(
        std::make_unique<Sequence>(id, std::vector<TokenId>{1, 2, 3}, SequenceParams{}));
  }
  EngineConfig config;
  GroupServices groups;
  RequestPlacement placement{config, groups, live, [](Isolation) {}};
};

TEST_F(WaitingRequests, AreInTheQueueWhileNoGroupTakesThem) {
  wait(1);
  wait(2);
  EXPECT_EQ(placement.num_queued(), 2u);
  EXPECT_EQ(placement.find(2)->id, 2u);
  EXPECT_EQ(live.at(1).group, LiveRequest::kNoGroup);
  placement.cancel(1);
  placement.route_waiting();  // to nobody
  EXPECT_EQ(placement.num_queued(), 1u);
  EXPECT_EQ(placement.find(1), nullptr);
}

TEST_F(WaitingRequests, EndWithTheAdapterThatIsDropped) {
  wait(1, 5);
  wait(2);
  wait(3, 5);
  placement.end_where([](const LiveRequest& each) { return each.adapter == 5; },
                      {ErrorCode::kInternal, "dropped", {}});
  EXPECT_EQ(ended, (std::vector<RequestId>{1, 3}));
  EXPECT_EQ(placement.num_queued(), 1u);
}

class Deadlines : public WaitingRequests {
 protected:
  Deadlines() {
    deadlines.connect([this](Duration delay, std::function<void()> task) {
      return executor->post_after(delay, std::move(task));
    });
  }
  Admission admission{{1, 0, seconds(3)}};
  int pumped = 0, published = 0;
  RequestDeadlines deadlines{
      *executor, admission, live, placement, {[this] { ++pumped; }, [this] { ++published; }}};
};

TEST_F(Deadlines, ARequestEndsAtItsOwn) {
  wait(1);
  wait(2);
  deadlines.end_at(1, executor->clock().now() + seconds(2));
  deadlines.end_at(2, executor->clock().now() + seconds(2));
  live.end(2, FinishReason::kAbort, std::nullopt);  // it has ended before
  scheduler.advance(seconds(1));
  EXPECT_EQ(ended, (std::vector<RequestId>{2}));
  scheduler.advance(seconds(1));
  EXPECT_EQ(ended, (std::vector<RequestId>{2, 1}));
  EXPECT_EQ(errors[1], "the request did not finish by its deadline");
  EXPECT_EQ(pumped, 1);
}

TEST_F(Deadlines, WhatWaitsTooLongEndsAndTheNextOneIsWatched_R17) {
  admission.in_service(executor->clock().now());
  const RequestId first = admission.admit(3, 1, std::nullopt, executor->clock().now()).value();
  wait(first);
  deadlines.watch_queue();
  scheduler.advance(seconds(1));
  const RequestId second = admission.admit(3, 1, std::nullopt, executor->clock().now()).value();
  wait(second);
  deadlines.watch_queue();
  scheduler.advance(seconds(2));
  EXPECT_EQ(ended, (std::vector<RequestId>{first}));
  EXPECT_NE(errors[first].find("max_queue_wait"), std::string::npos);
  scheduler.advance(seconds(1));
  EXPECT_EQ(ended, (std::vector<RequestId>{first, second}));
  EXPECT_EQ(admission.stats().late, 2u);
}

TEST_F(WaitingRequests, AnAdapterIsNotLoadedWithoutWorkers) {
  AdapterLoads loads(config, groups, {[](AdapterId, const Error&) {}, [](int32_t) {}});
  Status loaded;
  loads.load({"a", "a", "d", "/a", false}, [&](Status status) { loaded = std::move(status); });
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(loads.adapters().list().empty());
}

// One that is loaded from the start goes when its last request has ended.
TEST_F(WaitingRequests, AnAdapterGoesWithItsLastRequest) {
  AdapterLoads loads(config, groups, {[](AdapterId, const Error&) {}, [](int32_t) {}});
  const AdapterId id = loads.adapters().add({"a", "a", "d", "/a", false}, nullptr).value();
  ASSERT_TRUE(loads.adapters().hold(id));
  int gone = 0;
  loads.unload("a", [&](const Status& status) { gone += status.has_value(); });
  loads.settle();
  EXPECT_EQ(gone, 0);
  loads.adapters().release(id);
  loads.settle();
  EXPECT_EQ(gone, 1);
}

TEST(EngineReports, TellTheFirstAuditsAndTheOldestRequestsOfALoss) {
  EngineReports reports;
  ipc::StepResult result;
  result.audit.differences = 1;
  reports.audit(0, result);  // nobody listens
  int audits = 0;
  reports.audit_handler = [&](const AuditFinding&) { ++audits; };
  for (int i = 0; i < Engine::kMaxAuditRecords + 5; ++i) reports.audit(0, result);
  EXPECT_EQ(audits, Engine::kMaxAuditRecords - 1);
  GroupLoss loss, told;
  reports.loss_handler = [&](const GroupLoss& each) { told = each; };
  for (RequestId id = 1; id <= 300; ++id) loss.requests.push_back(id);
  reports.loss(loss);
  EXPECT_EQ(told.num_requests, 300u);
  ASSERT_EQ(told.requests.size(), GroupLoss::kMaxRequests);
  EXPECT_EQ(told.requests.back(), GroupLoss::kMaxRequests);
}

}  // namespace
}  // namespace refrain
