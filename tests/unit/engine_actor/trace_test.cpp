// The file of --trace-file: what it says of steps and requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/base/json.h"
#include "tests/temporary_directory.h"
#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using testing::EngineWorld;
using ::testing::HasSubstr;
using testing::prompt_of;

struct TraceWorld : EngineWorld {
  explicit TraceWorld(const std::filesystem::path& path) : EngineWorld(2) {
    config.trace_file = path.string();
  }
};

Json read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

// "b waiting", "e waiting", … of a request, in order.
std::vector<std::string> life(const Json& events, RequestId id) {
  std::vector<std::string> found;
  double last = 0;
  for (const Json& event : events) {
    if (event.value("cat", "") != "request" || event["id"] != id) continue;
    EXPECT_GE(event["ts"].get<double>(), last);
    last = event["ts"];
    found.push_back(event["ph"].get<std::string>() + " " + event["name"].get<std::string>());
  }
  return found;
}

TEST(EngineTrace, ShowsEveryStepAndThePhasesOfARequest) {
  const tests::TemporaryDirectory folder;
  const auto path = folder.path() / "trace.json";
  size_t steps = 0;
  RequestId id = 0;
  {
    TraceWorld world(path);
    world.start_ready();
    id = world.submit(prompt_of(40, 3), 5);  // three chunks
    world.scheduler.run_until_idle();
    steps = world.newest(0).steps.size();
    EXPECT_EQ(world.answers[id].tokens.size(), 5u);
  }
  const Json events = read(path);
  EXPECT_THAT(life(events, id), ElementsAre("b request 1", "b waiting", "e waiting", "b prefill",
                                            "e prefill", "b decode", "e decode", "e request 1"));
  const Json& end = events.back();
  EXPECT_EQ(end["args"], Json({{"finish_reason", "length"}, {"output_tokens", 5}}));
  size_t traced = 0, tokens = 0;
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    ++traced;
    tokens += event["args"]["tokens"].get<size_t>();
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_EQ(event["args"]["requests"], 1);
  }
  EXPECT_EQ(traced, steps);
  EXPECT_EQ(tokens, 40u + 4u) << "the prompt's, and all of the answer but its last";
}

TEST(EngineTrace, ShowsThatRequestsWaitAgainWhenWorkersAreLost_R8) {
  const tests::TemporaryDirectory folder;
  const auto path = folder.path() / "trace.json";
  {
    TraceWorld world(path);
    world.start_ready();
    for (const auto& rank : world.ranks) rank->hold_answers = true;
    world.submit(prompt_of(6), 5);
    world.scheduler.run_until_idle();
    world.lose(*world.ranks[0]);
    world.add_ranks();
    world.scheduler.run_until_idle();
  }
  const Json events = read(path);
  EXPECT_THAT(life(events, 1), ElementsAre("b request 1", "b waiting", "e waiting", "b prefill",
                                           "e prefill", "b waiting", "e waiting", "b prefill",
                                           "e prefill", "b decode", "e decode", "e request 1"));
  const auto lost = std::ranges::find_if(events, [](const Json& e) { return e["ph"] == "i"; });
  ASSERT_NE(lost, events.end());
  EXPECT_THAT((*lost)["args"]["why"].get<std::string>(), HasSubstr("rank 0"));
}

TEST(EngineTrace, KeepsTheFileBefore) {
  const tests::TemporaryDirectory folder;
  const auto path = folder.write("trace.json", "[]");
  ASSERT_TRUE(EngineTrace::create(path));
  EXPECT_EQ(read(path.string() + ".before"), Json::array());
  EXPECT_EQ(read(path).size(), 2u);
}

TEST(EngineTrace, NamesTheOptionOfAFileThatCannotBeWritten) {
  const auto trace = EngineTrace::create("/no/such/folder/trace.json");
  ASSERT_FALSE(trace);
  EXPECT_EQ(trace.error().field, "--trace-file");
  EXPECT_THAT(trace.error().message, HasSubstr("/no/such/folder/trace.json"));
}

}  // namespace
}  // namespace refrain
