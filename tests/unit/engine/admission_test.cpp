// what cannot begin in time is refused; what was accepted begins in time or is ended.
#include "runtime/engine/admission.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kPrompt = 10;
constexpr int64_t kOutput = 10;

// A device that runs `slots` requests at once, a token each in every step of 10 ms, first come
// first served; its queue is the admission's.
class Server {
 public:
  Server(int64_t slots, AdmissionOptions options)
      : slots_(slots), admission(limit(slots, options)) {
    admission.in_service(clock.now());
  }

  Result<RequestId> come(std::optional<Duration> own = std::nullopt, int64_t max_tokens = kOutput,
                         int64_t output = kOutput) {
    auto id = admission.admit(kPrompt, max_tokens, own, clock.now());
    if (id) waiting_.push_back({*id, output, clock.now()});
    return id;
  }
  void step() {
    clock.advance(milliseconds(10));
    while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < slots_) {
      longest_wait = std::max(longest_wait, clock.now() - waiting_.front().came);
      running_.push_back(waiting_.front());
      waiting_.pop_front();
    }
    for (Request& request : running_) {
      admission.token(request.id);
      if (--request.left == 0) admission.gone(request.id);
    }
    finished += std::erase_if(running_, [](const Request& request) { return request.left == 0; });
    admission.step(clock.now(), waiting_.size());
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }

 private:
  struct Request {
    RequestId id = 0;
    int64_t left = 0;  // tokens of its answer
    TimePoint came;
  };
  static AdmissionOptions limit(int64_t slots, AdmissionOptions options) {
    options.max_running = slots;
    return options;
  }
  int64_t slots_;
  std::deque<Request> waiting_;
  std::vector<Request> running_;

 public:
  ManualClock clock;
  Admission admission;
  Duration longest_wait{};
  size_t finished = 0;
};

TEST(Admission, CountsWhatRunsAndWaitsAgainstTheQueue_R17) {
  Server server(2, {.max_queue = 3});
  for (RequestId expected = 1; expected <= 5; ++expected) EXPECT_EQ(server.come(), expected);
  const auto sixth = server.come();
  ASSERT_FALSE(sixth);
  EXPECT_EQ(sixth.error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(server.admission.check().error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(server.admission.stats().refused_queue, 2u) << "refusals from the head count";
  server.admission.gone(1);
  EXPECT_TRUE(server.come());
}

TEST(Admission, WithoutLimitsEverythingIsAccepted) {
  Server server(1, {});
  for (int i = 0; i < 10000; ++i) ASSERT_TRUE(server.come());
  server.steps(100);
  EXPECT_TRUE(server.come());
  EXPECT_GT(server.admission.stats().predicted_wait_seconds, 100);
}

// 4 slots, 10 steps of 10 ms each: 40 requests a second, so k waiting ones take k/40 s.
TEST(Admission, PredictsTheWaitFromThroughputAndQueuedWork_R17) {
  Server server(4, {});
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(server.come());
  server.steps(200);  // 80 have run; the mean answer is known
  ASSERT_EQ(server.finished, 80u);
  const double waiting = 400 - 80 - 4;
  EXPECT_NEAR(server.admission.stats().predicted_wait_seconds, waiting / 40, waiting / 40 * 0.1);
}

// 128 tokens are expected of each, and one of the four that run ends with 8,000.
TEST(Admission, OneLongAnswerChangesThePredictionByNoMoreThanHalfOrTwice_R17) {
  for (const bool patient : {true, false}) {
    Server server(4, {.max_queue_wait = seconds(patient ? 60 : 5)});
    for (int64_t i = 0; i < 4; ++i) ASSERT_TRUE(server.come({}, 10000, 8000 + 2000 * i));
    for (int i = 0; i < 62; ++i) ASSERT_TRUE(server.come(seconds(1000), 10000, 128));
    server.steps(7990);
    ASSERT_EQ(server.finished, 0u);
    const double wait = 62 * (128 + kPrompt) / 400.0;  // work over the tokens of a second
    for (int i = 0; i < 1000; ++i) {
      server.step();
      const double predicted = server.admission.stats().predicted_wait_seconds;
      ASSERT_GE(predicted, 0.45 * wait) << "step " << i;
      ASSERT_LE(predicted, 2.2 * wait) << "step " << i;
      ASSERT_EQ(server.admission.check().has_value(), patient) << "step " << i;
    }
    EXPECT_GE(server.finished, 1u);
  }
}

// Half of the answers have 10 tokens, half 800, and four times as many come as can run.
TEST(Admission, AnswersOfVeryDifferentLengthsBeginInTimeButForFew_R17) {
  Server server(16, {.max_queue_wait = seconds(10)});
  std::mt19937 random(1);
  size_t late = 0;
  for (int step = 0; step < 60000; ++step) {
    if (random() % 100 < 14) server.come({}, 1000, random() % 2 == 0 ? 10 : 800);
    server.step();
    late += server.admission.take_overdue(server.clock.now()).size();
  }
  EXPECT_LE(late, server.finished / 12);
  EXPECT_LE(server.longest_wait, seconds(30));
  EXPECT_GE(server.finished, 0.95 * 600 * 1600 / 405) << "slots are idle";
}

TEST(Admission, AFreeSlotNeedsNoPrediction) {
  Server server(4, {.max_queue_wait = milliseconds(1)});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(server.come());
  server.steps(10);
  EXPECT_EQ(server.finished, 4u);
  EXPECT_EQ(server.admission.stats().predicted_wait_seconds, 0);
  EXPECT_TRUE(server.come());
}

TEST(Admission, UnderThreefoldLoadTheAcceptedBeginInTimeAndNoSlotIsIdle_R17) {
  Server server(4, {.max_queue_wait = seconds(1)});
  size_t accepted = 0, refused = 0;
  constexpr int kSteps = 6000;  // a minute at 120 requests a second, three times what runs
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < (step % 5 == 0 ? 2 : 1); ++i) ++(server.come() ? accepted : refused);
    server.step();
    for (const RequestId id : server.admission.take_overdue(server.clock.now()))
      FAIL() << "request " << id << " was accepted and waits past its limit";
  }
  EXPECT_GE(server.finished, 0.99 * 40 * 60);
  EXPECT_GT(refused, accepted);
  EXPECT_LE(server.longest_wait, seconds(1));
  EXPECT_GT(server.longest_wait, milliseconds(500)) << "the queue is used, too";
  EXPECT_EQ(server.admission.stats().refused_wait, refused);
}

TEST(Admission, OneSlowStepRefusesNobody_R17) {
  Server server(4, {.max_queue_wait = seconds(60)});
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(server.come());
  server.step();
  server.clock.advance(seconds(2));  // the machine did something else
  server.step();
  ASSERT_GT(server.admission.stats().predicted_wait_seconds, 60 * 0.85);
  EXPECT_TRUE(server.come());
  server.clock.advance(seconds(2));
  server.step();
  EXPECT_EQ(server.come().error().code, ErrorCode::kOverloaded) << "it is slow and not only was";
}

TEST(Admission, ARequestMayAskForLessWaitThanTheServerAllows_R17) {
  Server server(4, {.max_queue_wait = seconds(60)});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(server.come());
  server.steps(100);
  ASSERT_GT(server.admission.stats().predicted_wait_seconds, 1);
  EXPECT_EQ(server.come(milliseconds(500)).error().code, ErrorCode::kOverloaded);
  EXPECT_TRUE(server.come());
  EXPECT_TRUE(server.come(seconds(1000)));
}

TEST(Admission, CancelledWorkDoesNotCount) {
  Server server(1, {});
  std::vector<RequestId> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(*server.come());
  server.steps(50);
  ASSERT_GT(server.admission.stats().predicted_wait_seconds, 1);
  for (const RequestId id : ids) server.admission.gone(id);
  EXPECT_EQ(server.admission.stats().predicted_wait_seconds, 0);
}

// A slow step while requests waited, and then their clients left: what was slow has gone with them.
TEST(Admission, AnIdleServerRefusesNobodyForTheQueueItHad_R17) {
  Server server(80, {.max_queue_wait = seconds(60)});
  std::vector<RequestId> ids;
  for (int i = 0; i < 64; ++i) ids.push_back(*server.come());
  server.admission.step(server.clock.now(), 40);
  server.clock.advance(seconds(4));
  server.admission.token(ids.front());
  server.admission.step(server.clock.now(), 40);
  ASSERT_EQ(server.come().error().code, ErrorCode::kOverloaded);
  for (const RequestId id : ids) server.admission.gone(id);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(server.come()) << i;
}

// The last step of another group may end after the last request has.
TEST(Admission, TimeWithoutRequestsIsNoSlowStep_R17) {
  Server server(80, {.max_queue_wait = seconds(60)});
  const RequestId last = *server.come();
  server.admission.step(server.clock.now(), 0);
  server.admission.token(last);
  server.admission.gone(last);
  server.admission.step(server.clock.now(), 0);
  server.clock.advance(seconds(60));
  const RequestId first = *server.come();
  for (int i = 0; i < 31; ++i) ASSERT_TRUE(server.come());
  server.admission.token(first);
  server.admission.step(server.clock.now(), 26);
  EXPECT_EQ(server.admission.stats().predicted_wait_seconds, 0);
  EXPECT_TRUE(server.come());
}

TEST(Admission, TellsEachOverdueRequestOnceAndNoneThatBegan_R17) {
  Server server(1, {.max_queue_wait = seconds(1)});
  const RequestId first = *server.come(), second = *server.come();
  EXPECT_EQ(server.admission.next_deadline(), server.clock.now() + seconds(1));
  server.admission.token(first);
  const RequestId third = *server.come(milliseconds(200));
  EXPECT_EQ(server.admission.next_deadline(), server.clock.now() + milliseconds(200));
  server.clock.advance(milliseconds(999));
  EXPECT_EQ(server.admission.take_overdue(server.clock.now()), std::vector<RequestId>{third});
  server.clock.advance(milliseconds(1));
  EXPECT_EQ(server.admission.take_overdue(server.clock.now()), std::vector<RequestId>{second});
  server.clock.advance(seconds(10));
  EXPECT_TRUE(server.admission.take_overdue(server.clock.now()).empty());
  EXPECT_FALSE(server.admission.next_deadline());
}

TEST(Admission, TimeOutOfServiceCountsAgainstTheRequestsOwnLimitAlone_R17) {
  Server server(1, {.max_queue_wait = seconds(10)});
  const TimePoint began = server.clock.now();
  const RequestId patient = *server.come();
  const RequestId hasty = *server.come(seconds(30));
  server.clock.advance(seconds(4));
  server.admission.out_of_service(server.clock.now());
  const RequestId meanwhile = *server.come();
  EXPECT_EQ(server.admission.next_deadline(), began + seconds(30));
  server.clock.advance(seconds(26));
  EXPECT_EQ(server.admission.take_overdue(server.clock.now()), std::vector<RequestId>{hasty});
  EXPECT_FALSE(server.admission.next_deadline());
  server.clock.advance(seconds(100));
  server.admission.out_of_service(server.clock.now());  // the next workers did not come either
  server.admission.in_service(server.clock.now());
  EXPECT_EQ(server.admission.next_deadline(), server.clock.now() + seconds(6));
  server.clock.advance(seconds(6));
  EXPECT_EQ(server.admission.take_overdue(server.clock.now()), std::vector<RequestId>{patient});
  EXPECT_EQ(server.admission.next_deadline(), server.clock.now() + seconds(4));
  server.clock.advance(seconds(4));
  EXPECT_EQ(server.admission.take_overdue(server.clock.now()), std::vector<RequestId>{meanwhile});
}

TEST(Admission, ATimeOutOfServiceIsNoSlowStep) {
  Server server(1, {});
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(server.come());
  server.steps(100);
  const double before = server.admission.stats().predicted_wait_seconds;
  server.admission.out_of_service(server.clock.now());
  server.clock.advance(seconds(30));
  server.admission.in_service(server.clock.now());
  server.steps(10);
  EXPECT_LT(server.admission.stats().predicted_wait_seconds, 1.1 * before);
}

}  // namespace
}  // namespace refrain
