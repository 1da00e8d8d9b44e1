// Which steps are audited, and what becomes of what the ranks find (CG-41).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::EngineWorld;
using ::testing::HasSubstr;
using testing::prompt_of;

struct AuditWorld : EngineWorld {
  explicit AuditWorld(double rate) : EngineWorld(2) {
    config.audit_rate = rate;
    start_ready();
    engine->on_audit([this](const AuditFinding& finding) { findings.push_back(finding); });
    for (const int32_t rank : {0, 1}) {
      newest(rank).audits = [this, rank](const ipc::Step&) {
        ipc::AuditResult result;
        result.audited = true;
        result.worst_kv = 0.25f * static_cast<float>(rank);
        result.differences = rank == 1 ? differences : 0;
        if (result.differences > 0) result.first = "program p, key FULL 4: sample";
        return result;
      };
    }
  }
  int32_t differences = 0;
  std::vector<AuditFinding> findings;
};

TEST(EngineAudit, EveryRankAuditsTheSameShareOfTheSteps_CG41) {
  AuditWorld world(0.5);
  const RequestId id = world.submit(prompt_of(9, 3), 12);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(9, 3), 12));
  ASSERT_EQ(world.newest(0).steps.size(), world.newest(1).steps.size());
  size_t audited = 0;
  for (size_t i = 0; i < world.newest(0).steps.size(); ++i) {
    EXPECT_EQ(world.newest(0).steps[i].audit, world.newest(1).steps[i].audit);
    audited += world.newest(0).steps[i].audit;
  }
  EXPECT_EQ(audited, world.newest(0).steps.size() / 2);
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.audited_steps, audited) << "a step is counted once, not once a rank";
  EXPECT_EQ(stats.audit_differences, 0u);
  EXPECT_EQ(stats.audit_worst_kv, 0.25);
  EXPECT_TRUE(world.findings.empty());
}

TEST(EngineAudit, NoStepIsAuditedUnlessAsked_CG41) {
  AuditWorld world(0);
  world.submit(prompt_of(9, 3), 12);
  world.scheduler.run_until_idle();
  for (const ipc::Step& step : world.newest(0).steps) EXPECT_FALSE(step.audit);
  EXPECT_EQ(world.engine->stats().audited_steps, 0u);
}

TEST(EngineAudit, ADifferenceIsCountedAndToldAndTheRunGoesOn_CG41) {
  AuditWorld world(1);
  world.differences = 3;
  const RequestId id = world.submit(prompt_of(9, 3), 20);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(9, 3), 20));
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.group_restarts, 0u);
  EXPECT_GE(stats.audited_steps, 20u);
  EXPECT_EQ(stats.audit_differences, 3 * stats.audited_steps);
  EXPECT_EQ(stats.audit_first, "rank 1, program p, key FULL 4: sample");
  ASSERT_EQ(world.findings.size(), static_cast<size_t>(Engine::kMaxAuditRecords));
  EXPECT_EQ(world.findings[0].step, 1u);
  EXPECT_EQ(world.findings[0].differences, 3);
  EXPECT_THAT(world.findings[0].first, HasSubstr("rank 1, program p, key FULL 4"));
}

}  // namespace
}  // namespace refrain
