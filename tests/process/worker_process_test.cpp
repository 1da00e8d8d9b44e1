// Real worker processes with a scripted coordinator: golden tokens, endings, exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "tests/process/worker_scripted_coordinator.h"

namespace refrain {
namespace {

using testing::HasSubstr;

const std::string kModel =
    "tests/fixtures/models/llama-sharded";  // ctest runs in the source folder

struct Golden {
  std::vector<TokenId> prompt, output;
};

// The first entry with a prompt of several tokens.
Golden golden() {
  const auto entries = nlohmann::json::parse(std::ifstream(kModel + "/expected.json"));
  for (const auto& entry : entries) {
    Golden golden{entry["prompt_ids"], entry["output_ids"]};
    if (golden.prompt.size() > 3 && golden.output.size() >= 8) return golden;
  }
  return {};
}

ipc::WorkerConfig small_config(int ranks) {
  ipc::WorkerConfig config;
  config.tensor_parallel_size = ranks;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 512;
  config.max_model_len = 512;
  config.dtype = "float32";
  config.num_gpu_blocks_override = 64;
  config.collective_timeout_ms = 20'000;
  return config;
}

// A step of one request in slot 0.
ipc::Step step_of(StepId id, std::vector<TokenId> tokens, int32_t computed) {
  ipc::Step step;
  step.step = id;
  step.blocks.resize(1);
  step.runs.resize(1);
  step.runs[0].mode = computed == 0 ? ipc::ForwardMode::kExtend : ipc::ForwardMode::kDecode;
  step.runs[0].rows.slot = {0};
  step.runs[0].rows.num_tokens = {static_cast<int32_t>(tokens.size())};
  step.runs[0].rows.computed = {computed};
  step.runs[0].rows.flags = {ipc::kSamples};
  step.runs[0].rows.token_ids = std::move(tokens);
  return step;
}

ipc::Step first_step(const std::vector<TokenId>& prompt) {
  ipc::Step step = step_of(1, prompt, 0);
  const auto blocks = static_cast<int32_t>(prompt.size() + 32) / 16 + 1;
  for (int32_t i = 0; i < blocks; ++i) {
    step.blocks[0].slot.push_back(0);
    step.blocks[0].index.push_back(i);
    step.blocks[0].block.push_back(i + 1);
  }
  ipc::SlotSetup setup;
  setup.temperature = 0;
  setup.prompt_len = static_cast<int32_t>(prompt.size());
  step.setups = {setup};
  return step;
}

class WorkerProcessTest : public testing::Test {
 protected:
  void start(int ranks, const std::string& model = kModel) {
    for (int rank = 0; rank < ranks; ++rank) {
      workers_.push_back(std::make_unique<WorkerProcess>(std::vector<std::string>{
          "--model", model, "--rank", std::to_string(rank), "--tensor-parallel-size",
          std::to_string(ranks), "--coordinator", coordinator_.address(), "--device", "host",
          "--log-level", "warning"}));
    }
  }
  int ranks() const { return static_cast<int>(workers_.size()); }
  void meet(int rank) {
    const pid_t pid = workers_[static_cast<size_t>(rank)]->pid();
    ASSERT_TRUE(coordinator_.meet(rank, pid)) << coordinator_.error();
  }
  void bring_up(Epoch epoch = 1) {
    for (int rank = 0; rank < ranks(); ++rank) {
      ASSERT_NO_FATAL_FAILURE(meet(rank));
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      coordinator_.welcome(rank, small_config(ranks()), epoch);
    }
    ASSERT_NO_FATAL_FAILURE(tell_where_all_are());
    for (int rank = 0; rank < ranks(); ++rank) {
      ASSERT_TRUE(coordinator_.expect<ipc::Loaded>(rank)) << coordinator_.error();
    }
    for (int rank = 0; rank < ranks(); ++rank) coordinator_.send(rank, ipc::InitCache{{64}});
    for (int rank = 0; rank < ranks(); ++rank) {
      ASSERT_TRUE(coordinator_.expect<ipc::Ready>(rank)) << coordinator_.error();
    }
  }
  // What a coordinator does for ranks that find each other.
  void tell_where_all_are() {
    ipc::Peers peers;
    for (int rank = 0; rank < ranks() && ranks() > 1; ++rank) {
      const auto address = coordinator_.expect<ipc::RankAddress>(rank);
      ASSERT_TRUE(address) << coordinator_.error();
      peers.ranks.push_back(*address);
    }
    if (ranks() > 1) send_all(peers);
  }
  void send_all(const ipc::Message& message) {
    for (int rank = 0; rank < ranks(); ++rank) coordinator_.send(rank, message);
  }
  // Greedy tokens of the golden prompt, two steps in flight.
  std::vector<TokenId> generate(const std::vector<TokenId>& prompt, int count) {
    send_all(first_step(prompt));
    const auto length = static_cast<int32_t>(prompt.size());
    std::vector<TokenId> output;
    for (int i = 0; i < count; ++i) {
      send_all(step_of(static_cast<StepId>(i) + 2, {-1}, length + i));  // -1: token on device
      for (int rank = 0; rank < ranks(); ++rank) {
        const auto result = coordinator_.expect<ipc::StepResult>(rank);
        if (!result) return output;
        EXPECT_EQ(result->step, static_cast<StepId>(i + 1));
        if (rank == 0 && result->tokens.size() == 1) output.push_back(result->tokens[0]);
      }
    }
    return output;
  }
  void TearDown() override {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(coordinator_.group_token())));
    }
  }

  ScriptedCoordinator coordinator_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

TEST_F(WorkerProcessTest, ServesGoldenTokensAloneAndAsTwoRanks) {
  const Golden expected = golden();
  ASSERT_FALSE(expected.prompt.empty());
  const std::vector<TokenId> wanted(expected.output.begin(), expected.output.begin() + 8);
  for (const int ranks : {1, 2}) {
    workers_.clear();
    start(ranks);
    ASSERT_NO_FATAL_FAILURE(bring_up(static_cast<Epoch>(ranks)));
    EXPECT_EQ(generate(expected.prompt, 8), wanted) << coordinator_.error();
    send_all(ipc::Shutdown{"test over"});
    for (auto& worker : workers_) EXPECT_EQ(worker->wait(), kExitOk);
  }
}

TEST_F(WorkerProcessTest, SignalsEndItCleanlyAtAnyTime) {
  start(1);
  ASSERT_NO_FATAL_FAILURE(meet(0));
  workers_[0]->send_signal(SIGINT);
  EXPECT_EQ(workers_[0]->wait(), kExitOk);
  workers_.clear();
  start(1);
  ASSERT_NO_FATAL_FAILURE(bring_up());
  workers_[0]->send_signal(SIGTERM);
  EXPECT_EQ(workers_[0]->wait(), kExitOk);
}

TEST_F(WorkerProcessTest, ARefusedWorkerEndsWithTheConfigurationCode) {
  start(1);
  ASSERT_NO_FATAL_FAILURE(meet(0));
  coordinator_.refuse(0, "another build");
  EXPECT_EQ(workers_[0]->wait(), kExitConfig);
}

TEST_F(WorkerProcessTest, AMissingModelIsAConfigurationError) {
  start(1, "tests/fixtures/no-such-model");
  EXPECT_EQ(workers_[0]->wait(), kExitConfig);
}

TEST_F(WorkerProcessTest, ARankThatIsKilledEndsTheOthersByTheDeadline) {
  start(2);
  ASSERT_NO_FATAL_FAILURE(bring_up());
  workers_[1]->send_signal(SIGKILL);
  EXPECT_EQ(workers_[1]->wait(), 1000 + SIGKILL);
  coordinator_.send(0, first_step(golden().prompt));
  const auto failed = coordinator_.expect<ipc::Failed>(0);
  ASSERT_TRUE(failed) << coordinator_.error();
  EXPECT_THAT(failed->message, HasSubstr("rank 1"));
  EXPECT_EQ(workers_[0]->wait(), kExitInternal);
}

TEST_F(WorkerProcessTest, ANewEpochStartsTheGroupAfresh) {  // R-10, first half
  start(2);
  ASSERT_NO_FATAL_FAILURE(bring_up(1));
  for (int rank = 0; rank < 2; ++rank) coordinator_.welcome(rank, small_config(2), 2);
  ASSERT_NO_FATAL_FAILURE(tell_where_all_are());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(coordinator_.expect<ipc::Loaded>(rank)) << coordinator_.error();
    coordinator_.send(rank, ipc::InitCache{{64}});
  }
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(coordinator_.expect<ipc::Ready>(rank)) << coordinator_.error();
  }
  const Golden expected = golden();
  EXPECT_EQ(generate(expected.prompt, 4),
            std::vector<TokenId>(expected.output.begin(), expected.output.begin() + 4));
}

}  // namespace
}  // namespace refrain
