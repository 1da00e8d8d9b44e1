// CG-17: replicas of a model that exchange something in each step run the key that they have in
// common: the least mode, the largest size; one that is idle runs it without a live row.
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <limits>

#include "runtime/sched/step_together.h"
#include "tests/graph/states/hybrid_requests.h"

namespace refrain::tests {
namespace {

constexpr int kReplicas = 3;

const HybridModel& divided() {
  static const HybridModel model([] {
    HybridShape shape;
    shape.replicas = kReplicas;
    return shape;
  }());
  return model;
}

// Each a `Served` of its own, started at the same time, since they meet while they start.
class Replicas {
 public:
  explicit Replicas(ServedOptions options) {
    static int count = 0;
    options.replicas_token = fmt::format("replicas-{}-{}", getpid(), ++count);
    std::vector<std::future<std::unique_ptr<Served>>> starts;
    for (options.replica = 0; options.replica < kReplicas; ++options.replica) {
      options.build = divided().build(options.replica);
      starts.push_back(std::async(std::launch::async, [options] {
        return std::make_unique<Served>(divided().directory(), options);
      }));
    }
    for (auto& start : starts) {
      served.push_back(start.get());
      schedulers_.push_back(served.back()->scheduler);
    }
  }

  // Two rounds are in flight where there is something to do; at most so many in all.
  void run(int most = std::numeric_limits<int>::max()) {
    for (int in_flight = 0, told = 0;; --in_flight) {
      for (; in_flight < 2 && told < most; ++in_flight, ++told) {
        const auto plans = schedule_together(schedulers_);
        if (plans.empty()) break;
        for (size_t i = 0; i < plans.size(); ++i) {
          idle += plans[i]->step().runs.front().rows.slot.empty() ? 1 : 0;
          served[i]->tell(plans[i]->step());
        }
      }
      if (in_flight == 0) return;
      for (const auto& each : served)
        if (!each->receive()) return;
    }
  }

  std::vector<std::unique_ptr<Served>> served;
  int idle = 0;  // steps without rows

 private:
  std::vector<Scheduler*> schedulers_;
};

ServedOptions with_mode(const std::string& mode, int ranks = 1) {
  ServedOptions options;
  options.config.cudagraph_mode = mode;
  options.config.tensor_parallel_size = ranks;
  options.poison = true;
  return options;
}

class StepTogether : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    if (ServedOptions{}.device != "host") GTEST_SKIP() << "a process a GPU";
  }
};

// Requests spread unevenly, so that one replica has prompts while another decodes, and all but one
// are idle at the end.
TEST_P(StepTogether, CG17TokensAreThoseOfPlainLoops) {
  const auto& [mode, ranks] = GetParam();
  Replicas replicas(with_mode(mode, ranks));
  const size_t owner[] = {0, 1, 0, 2, 0, 0};
  for (size_t i = 0; i < std::size(kRequests); ++i) {
    const Request& request = kRequests[i];
    replicas.served[owner[i]]->add(i + 1, prompt(request.length, request.seed), request.count);
    if (i % 2 == 1) replicas.run(5);
  }
  replicas.run();
  static const Answers expected = answers_of(divided());
  for (size_t i = 0; i < std::size(kRequests); ++i)
    EXPECT_EQ(replicas.served[owner[i]]->outcomes[i + 1].tokens, expected[i]) << "request " << i;
  EXPECT_GT(replicas.idle, 10);
  for (const auto& each : replicas.served) {
    EXPECT_EQ(each->modes, replicas.served[0]->modes) << "each step has one mode for all";
    EXPECT_EQ(each->scheduler->num_unfinished(), 0u);
  }
  if (mode != "NONE") {
    EXPECT_GT(replicas.served[0]->modes[mode == "PIECEWISE" ? "PIECEWISE" : "FULL"], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, StepTogether, every_mode_and_ranks(), name_of_mode_and_ranks);

TEST(StepTogether, CG17OptionsThatRunStepsOfTheirOwnAreRefused) {
  const auto refused = [](auto set) {
    ServedOptions options = with_mode("FULL");
    options.build = divided().build();
    set(options.config);
    try {
      Served served(divided().directory(), options);
    } catch (const FatalError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused([](ipc::WorkerConfig& c) { c.split_prefill = 2; }).find("split_prefill: "),
            std::string::npos);
  EXPECT_NE(refused([](ipc::WorkerConfig& c) { c.audit = true; }).find("audit: "),
            std::string::npos);
}

}  // namespace
}  // namespace refrain::tests
