// R-17 through the whole engine, on a virtual clock: limits of the queue, deadlines, order.
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::EngineWorld;
using testing::prompt_of;

constexpr auto kStep = std::chrono::milliseconds(10);

// Lets one held step pass; false when there is none.
bool step(EngineWorld& world) {
  world.scheduler.run_until_idle();
  if (world.ranks[0]->held.empty()) return false;
  world.scheduler.advance(kStep);
  world.ranks[0]->answer();
  world.scheduler.run_until_idle();
  return true;
}

TEST(EngineOverload, ARequestThatCannotBeginInTimeEndsWith503_R17) {
  EngineWorld world(1);
  world.config.max_queue_wait = 1;
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(world.submit(prompt_of(3), 5));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(world));
  world.scheduler.advance(
      std::chrono::milliseconds(1500));  // heartbeats go on, no step is answered
  for (int i = 0; i < 6; ++i) {
    const bool runs = i < 4;  // --max-num-seqs; two of them have no token yet, but they began
    EXPECT_EQ(world.answers[ids[i]].finishes, runs ? 0 : 1) << i;
    if (!runs) {
      EXPECT_EQ(world.answers[ids[i]].error.value().code, ErrorCode::kUnavailable);
    }
  }
  EXPECT_EQ(world.engine->admission().late, 2u);
  while (step(world)) {
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(world.answers[ids[i]].finish, FinishReason::kLength);
  EXPECT_TRUE(world.all_blocks_free());
}

// What is posted is held back when asked, as behind a long turn of the engine.
class SlowExecutor final : public Executor {
 public:
  explicit SlowExecutor(std::shared_ptr<Executor> inner) : inner_(std::move(inner)) {}
  void post(std::function<void()> task) override {
    if (!holds_) return inner_->post(std::move(task));
    held_.push_back(std::move(task));
  }
  TimerId post_after(Duration delay, std::function<void()> task) override {
    return inner_->post_after(delay, std::move(task));
  }
  void cancel(TimerId timer) override { inner_->cancel(timer); }
  const Clock& clock() const override { return inner_->clock(); }
  void hold() { holds_ = true; }
  void let_go() {
    holds_ = false;
    for (auto& task : std::exchange(held_, {})) inner_->post(std::move(task));
  }

 private:
  std::shared_ptr<Executor> inner_;
  bool holds_ = false;
  std::vector<std::function<void()>> held_;
};

TEST(EngineOverload, AWaitThatIsOverBeforeTheRequestEntersEndsIt_R17) {
  EngineWorld world(1);
  std::shared_ptr<SlowExecutor> engine;
  world.wrap_engine = [&](std::shared_ptr<Executor> inner) {
    return engine = std::make_shared<SlowExecutor>(std::move(inner));
  };
  world.config.max_queue_wait = 1;
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(world.submit(prompt_of(3), 5));  // four run
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(world));
  world.scheduler.advance(std::chrono::milliseconds(900));
  GenerateRequest hasty;
  hasty.prompt = prompt_of(3);
  hasty.max_queue_wait = std::chrono::milliseconds(5);
  engine->hold();
  const RequestId id = world.submit(std::move(hasty));
  world.scheduler.advance(std::chrono::milliseconds(100));  // the fifth one's time is over
  EXPECT_EQ(world.engine->admission().late, 1u);
  engine->let_go();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].error.value_or(Error{}).code, ErrorCode::kUnavailable);
  EXPECT_EQ(world.engine->admission().late, 2u);
  while (step(world)) {
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(world.answers[ids[i]].finish, FinishReason::kLength);
}

TEST(EngineOverload, RequestsThatWaitForWorkersEndInTimeToo_R17) {
  EngineWorld world(1);
  world.config.max_queue_wait = 60;
  world.start();
  GenerateRequest hasty;
  hasty.prompt = prompt_of(3);
  hasty.max_queue_wait = std::chrono::seconds(1);
  int ends = 0;
  const RequestId patient = world.submit(prompt_of(3), 5);
  ASSERT_TRUE(world.engine->submit(hasty, [&](RequestOutput output) {
    ++ends;
    EXPECT_EQ(output.error.value().code, ErrorCode::kUnavailable);
  }));
  world.scheduler.run_until_idle();
  world.scheduler.advance(std::chrono::seconds(2));
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(world.answers[patient].finishes, 0);
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[patient].finish, FinishReason::kLength);
}

TEST(EngineOverload, TimeWithoutWorkersDoesNotCount_R17) {
  EngineWorld world(1);
  world.config.max_queue_wait = 1;
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(world.submit(prompt_of(3), 5));  // four run
  world.scheduler.run_until_idle();
  world.lose(*world.ranks[0]);
  ids.push_back(world.submit(prompt_of(3), 5));
  world.scheduler.advance(std::chrono::seconds(30));
  world.add_ranks();
  world.scheduler.run_until_idle();
  for (const RequestId id : ids) EXPECT_EQ(world.answers[id].finish, FinishReason::kLength);
  EXPECT_EQ(world.engine->admission().late, 0u);

  // In service again the limit holds as before.
  world.newest(0).hold_answers = true;
  std::vector<RequestId> more;
  for (int i = 0; i < 5; ++i) more.push_back(world.submit(prompt_of(3), 5));
  for (int i = 0; i < 2; ++i) {
    world.scheduler.run_until_idle();
    world.newest(0).answer();
  }
  world.scheduler.advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(world.answers[more.back()].error.value_or(Error{}).code, ErrorCode::kUnavailable);
  EXPECT_EQ(world.engine->admission().late, 1u);
}

TEST(EngineOverload, TheOldestNeverStarvesAndTheAcceptedFinish_R17) {
  EngineWorld world(1);
  world.config.max_queue_wait = 1;
  testing::MockRankOptions options;
  options.num_kv_blocks = 30;  // tight: admission also waits for blocks
  world.start_ready(options);
  world.ranks[0]->hold_answers = true;
  std::vector<RequestId> accepted;
  std::vector<RequestId> begun;
  size_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const EngineStats stats = world.engine->stats();
    if (!world.engine->accepting()) {
      ++refused;
    } else if (stats.requests_waiting < 400) {
      GenerateRequest request;
      request.prompt = prompt_of(1 + static_cast<size_t>(i) % 20);
      request.sampling.max_tokens = 1 + i % 16;
      auto id = world.engine->submit(std::move(request), [&begun](RequestOutput output) {
        if (output.output_tokens == 1) begun.push_back(output.id);
        EXPECT_TRUE(!output.error || output.error->code == ErrorCode::kUnavailable);
      });
      if (id) accepted.push_back(*id);
    }
    if (i % 2 == 0) step(world);
  }
  while (step(world)) {
  }
  EXPECT_GT(refused, 500u);
  // Four slots and answers of any length: few predictions are off by more than their margin.
  const uint64_t late = world.engine->admission().late;
  EXPECT_LE(late, accepted.size() / 50);
  ASSERT_EQ(begun.size() + late, accepted.size());
  // First come, first served, but for neighbours whose prompts end in the same or the next steps.
  RequestId newest = 0;
  for (const RequestId id : begun) {
    EXPECT_LE(newest, id + 8) << "request " << id << " was overtaken";
    newest = std::max(newest, id);
  }
  EXPECT_EQ(world.completed(), begun.size());
  EXPECT_TRUE(world.all_blocks_free());
}

}  // namespace
}  // namespace refrain
