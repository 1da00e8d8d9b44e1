// What a coordinator costs a step of a group, with many groups: the real engine in front of mock
// ranks that answer at once, in simulated time. Only what runs on the engine's executor is timed:
// frames read and written, routing, scheduling, results. Prints JSON. Run it in the source
// directory.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "runtime/base/json.h"
#include "tests/unit/engine_actor/engine_world.h"

namespace refrain::testing {
namespace {

constexpr double kMostMicroseconds = 20;  // of CPU a step of a group

class TimedExecutor final : public Executor {
 public:
  explicit TimedExecutor(std::shared_ptr<Executor> inner) : inner_(std::move(inner)) {}
  void post(std::function<void()> task) override { inner_->post(timed(std::move(task))); }
  TimerId post_after(Duration delay, std::function<void()> task) override {
    return inner_->post_after(delay, timed(std::move(task)));
  }
  void cancel(TimerId timer) override { inner_->cancel(timer); }
  const Clock& clock() const override { return inner_->clock(); }

  double seconds() const { return std::chrono::duration<double>(*spent_).count(); }

 private:
  std::function<void()> timed(std::function<void()> task) const {
    return [task = std::move(task), spent = spent_] {
      const auto begun = std::chrono::steady_clock::now();
      task();
      *spent += std::chrono::steady_clock::now() - begun;
    };
  }

  std::shared_ptr<Executor> inner_;
  std::shared_ptr<std::chrono::steady_clock::duration> spent_ =
      std::make_shared<std::chrono::steady_clock::duration>();
};

struct Options {
  int32_t groups = 1000;
  int32_t requests = 4;  // of a group that computes answers, at a time
  int64_t output = 32;
  bool roles = false;
};

uint64_t steps_of(const EngineStats& stats) {
  uint64_t steps = 0;
  for (const GroupStats& group : stats.groups) steps += group.steps;
  return steps;
}

int run(const Options& options) {
  EngineWorld world;
  std::shared_ptr<TimedExecutor> timed;
  world.wrap_engine = [&](std::shared_ptr<Executor> engine) {
    return timed = std::make_shared<TimedExecutor>(std::move(engine));
  };
  EngineConfig& config = world.config;
  config.worker.max_num_seqs = 2 * options.requests;
  config.worker.max_num_batched_tokens = 256;
  config.max_queue = 0;
  const int32_t prefill = options.roles ? options.groups / 2 : 0;
  config.prefill_groups = prefill;
  config.decode_groups = options.roles ? options.groups - prefill : 0;
  if (!options.roles) config.data_parallel_size = options.groups;
  config.worker.kv_transfer = options.roles;
  world.high_water_mark = 64 * options.groups;
  world.start();
  std::map<int64_t, MockRank*> by_pid;
  for (int32_t group = 0; group < options.groups; ++group) {
    MockRankOptions rank;
    rank.group = group;
    rank.pid = 1000 + group;
    rank.num_kv_blocks = 16 * 2 * options.requests;
    MockRank& made = world.add_rank(rank);
    by_pid[rank.pid] = &made;
    made.find_rank = [&by_pid](int64_t pid) { return by_pid.at(pid); };
  }
  world.scheduler.run_until_idle();
  for (const GroupStats& group : world.engine->stats().groups) {
    if (group.state == GroupState::kReady) continue;
    fmt::print(stderr, "a group is not ready: {}\n", group.state_detail);
    return 70;
  }
  const uint64_t steps_before = steps_of(world.engine->stats());
  const double seconds_before = timed->seconds();
  const int32_t total = (options.groups - prefill) * options.requests;
  for (int32_t i = 0; i < total; ++i) {
    std::vector<TokenId> prompt;
    for (int32_t at = 0; at < 5 + i % 20; ++at) prompt.push_back(1 + (i * 7 + at * 13) % 400);
    world.submit(std::move(prompt), options.output);
  }
  world.scheduler.run_until_idle();
  const EngineStats stats = world.engine->stats();
  if (world.completed() != static_cast<uint64_t>(total) || stats.group_restarts != 0) {
    fmt::print(stderr, "{} of {} requests ended well, {} restarts\n", world.completed(), total,
               stats.group_restarts);
    return 70;
  }
  const auto steps = steps_of(stats) - steps_before;
  const double each = (timed->seconds() - seconds_before) / static_cast<double>(steps) * 1e6;
  nlohmann::json out = {{"groups", options.groups}, {"roles", options.roles},
                        {"requests", total},        {"steps", steps},
                        {"engine_us_a_step", each}, {"limit_us", kMostMicroseconds}};
  fmt::print("{}\n", out.dump());
  return 0;
}

}  // namespace
}  // namespace refrain::testing

int main(int argc, char** argv) {
  refrain::testing::Options options;
  CLI::App app("CPU time of a coordinator for a step of a group.", "groups_bench");
  app.add_option("--groups", options.groups)->check(CLI::Range(2, 1024));
  app.add_option("--requests", options.requests, "Of a group that computes answers, at a time")
      ->check(CLI::Range(1, 256));
  app.add_option("--output", options.output, "Tokens of an answer")->check(CLI::Range(2, 40));
  app.add_flag("--roles", options.roles, "Half of the groups compute prompts, half answers");
  CLI11_PARSE(app, argc, argv);
  return refrain::testing::run(options);
}
