// Engine::create on the real executor and ZeroMQ: nothing staged but the model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "runtime/actor/io_context.h"
#include "runtime/base/build_info.h"
#include "tests/temporary_directory.h"
#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::MockRank;
using testing::MockRankOptions;
using testing::prompt_of;
using testing::solo_run;

constexpr auto kPatience = std::chrono::seconds(30);

TEST(EngineOverZmq, ServesRequestsAndStops) {
  const char* model_dir = "tests/fixtures/models/qwen2";
  EngineConfig config;
  config.model = model_dir;
  config.worker.tensor_parallel_size = 2;
  config.worker.max_num_seqs = 4;
  config.worker.max_num_batched_tokens = 16;
  config.worker.max_model_len = 64;
  config.worker.block_size = 4;
  auto model = load_model_config(model_dir);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  model->eos_token_ids = {0};
  const auto digest = model_digest(model_dir);
  ASSERT_TRUE(digest.has_value()) << digest.error().message;
  const tests::TemporaryDirectory directory;

  IoContext io;
  ipc::EndpointOptions endpoint;
  endpoint.address = "ipc://" + (directory.path() / "coordinator").string();
  auto server = ipc::make_zmq_server(io, endpoint);
  ASSERT_TRUE(server.has_value()) << server.error().message;
  auto created = Engine::create(config, *model, testing::fixture_tokenizer(), io,
                                {io.make_strand()}, std::move(*server));
  ASSERT_TRUE(created.has_value()) << created.error().message;
  std::unique_ptr<Engine> engine = std::move(*created);
  std::promise<void> ready, stopped;
  engine->on_state([&](GroupState state, const std::string&) {
    if (state == GroupState::kReady) ready.set_value();
    if (state == GroupState::kStopped) stopped.set_value();
  });
  std::vector<std::unique_ptr<MockRank>> ranks;
  for (int32_t rank = 0; rank < 2; ++rank) {
    endpoint.identity = "rank-" + std::to_string(rank);
    auto client = ipc::make_zmq_client(io, endpoint);
    ASSERT_TRUE(client.has_value()) << client.error().message;
    MockRankOptions options;
    options.rank = rank;
    options.tensor_parallel_size = 2;
    options.build_id = build_id();
    options.model_digest = *digest;
    options.pid = getpid();
    ranks.push_back(std::make_unique<MockRank>(std::move(*client), options));
    ranks.back()->hello();
  }
  engine->start();
  std::thread thread([&] { io.run(); });
  EXPECT_EQ(ready.get_future().wait_for(kPatience), std::future_status::ready);

  std::promise<std::vector<TokenId>> done;
  GenerateRequest request;
  request.prompt = prompt_of(30);
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  std::vector<TokenId> tokens;
  ASSERT_TRUE(engine->submit(request, [&](const RequestOutput& output) {
    for (const TokenOutput& token : output.tokens) tokens.push_back(token.token);
    if (output.finish != FinishReason::kNone) done.set_value(tokens);
  }));
  auto answer = done.get_future();
  ASSERT_EQ(answer.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(answer.get(), solo_run(prompt_of(30), 8, 64, 500, 0));
  EXPECT_GT(engine->stats().coordinator_us_per_step, 0);

  engine->stop();
  EXPECT_EQ(stopped.get_future().wait_for(kPatience), std::future_status::ready);
  io.stop();
  thread.join();
  ranks.clear();
  engine.reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "the socket's file is left behind";
}

}  // namespace
}  // namespace refrain
