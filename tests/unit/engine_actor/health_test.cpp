// What a probe is told.
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::EngineWorld;
using testing::prompt_of;

// A long step of a slow device is no reason for a probe to end the server.
TEST(Engine, ADeviceThatGetsOnWithinAStepIsAlive_R11) {
  for (const bool counts_launches : {true, false}) {
    EngineWorld world(1);
    world.start_ready();
    world.ranks[0]->hold_answers = true;
    world.submit(prompt_of(6), 5);
    world.scheduler.run_until_idle();
    // Of a device that cannot tell, 8 s without an answer are a hang (StepDeadline::kUnseen).
    for (uint64_t launch = 1; launch <= (counts_launches ? 60 : 30); ++launch) {
      world.ranks[0]->say(ipc::Position{0, launch, counts_launches});
      world.scheduler.advance(std::chrono::milliseconds(250));
    }
    const EngineHealth health = world.engine->health();
    EXPECT_EQ(health.state, GroupState::kReady);
    EXPECT_GT(health.seconds_since_last_answer, counts_launches ? 10 : 7);
    if (counts_launches) {
      EXPECT_LT(health.seconds_since_progress, 1);
    } else {
      EXPECT_GT(health.seconds_since_progress, 7) << "what is submitted only is no life";
    }
  }
}

}  // namespace
}  // namespace refrain
