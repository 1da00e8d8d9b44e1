#pragma once
// An engine with mock ranks under one ManualScheduler: deterministic by its seed.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ipc/transport/inproc_endpoint.h"
#include "runtime/actor/manual_executor.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/text_outputs.h"
#include "runtime/text/tokenizer.h"
#include "tests/unit/engine_actor/mock_rank.h"

namespace refrain::testing {

inline constexpr TokenId kPoison = 505;  // the mock model never samples it

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<TokenOutput> outputs;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int finishes = 0;
  std::string stop_reason;
  std::optional<Error> error;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

// An answer that went through a loss, and that of a run without one.
inline void expect_same(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.text, expected.text);
  EXPECT_EQ(answer.finish, expected.finish) << (answer.error ? answer.error->message : "");
  EXPECT_EQ(answer.finishes, 1);
  EXPECT_EQ(answer.stop_reason, expected.stop_reason);
  EXPECT_EQ(answer.output_tokens, expected.output_tokens);
  EXPECT_EQ(answer.prompt_tokens, expected.prompt_tokens);
  ASSERT_EQ(answer.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < answer.outputs.size(); ++i) {
    EXPECT_EQ(answer.outputs[i].logprob, expected.outputs[i].logprob);
    EXPECT_EQ(answer.outputs[i].top.size(), expected.outputs[i].top.size());
  }
}

inline std::shared_ptr<const text::Tokenizer> fixture_tokenizer() {
  auto tokenizer = text::Tokenizer::load("tests/fixtures/models/qwen2");
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
  return std::make_shared<const text::Tokenizer>(std::move(*tokenizer));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class EngineWorld {
 public:
  explicit EngineWorld(int32_t ranks = 1, uint64_t seed = 0) : scheduler(seed) {
    config.worker.tensor_parallel_size = ranks;
    config.worker.max_num_seqs = 4;
    config.worker.max_num_batched_tokens = 16;
    config.worker.max_model_len = 64;
    config.worker.block_size = 4;
    model.vocab_size = 512;
    model.eos_token_ids = {0};
  }
  ~EngineWorld() {
    engine.reset();
    scheduler.run_until_idle();
  }

  // Makes the engine from `config`; the workers come when add_ranks() is called.
  void start() {
    hub = ipc::InprocHub::create();
    EngineParts parts;
    parts.config = config;
    parts.model = model;
    parts.engine_executor = scheduler.make_executor("engine");
    if (wrap_engine) parts.engine_executor = wrap_engine(parts.engine_executor);
    std::vector<std::shared_ptr<Executor>> output_executors;
    for (int i = 0; i < output_threads; ++i)
      output_executors.push_back(scheduler.make_executor("output-" + std::to_string(i)));
    parts.outputs = text_outputs(output_executors, tokenizer);
    parts.endpoint = *hub->make_server(parts.engine_executor, high_water_mark);
    parts.watch = [this, executor = parts.engine_executor](const ProcessIdentity& process,
                                                           std::function<void()> gone) {
      const int64_t pid = process.pid;
      if (gone_pids.contains(pid)) {
        executor->post(std::move(gone));
      } else {
        watched[pid] = std::move(gone);
      }
      return true;
    };
    parts.kill = [this](int64_t pid) { killed.push_back(pid); };
    parts.build_id = "build";
    parts.model_digest = "digest";
    parts.process.realm = "here";
    if (!config.trace_file.empty()) parts.trace = EngineTrace::create(config.trace_file).value();
    parts.token_prefix = "group";
    engine = make_engine(std::move(parts));
    engine->on_state([this](GroupState state, const std::string& detail) {
      states.push_back(state);
      details.push_back(detail);
    });
    engine->on_loss([this](const GroupLoss& loss) { losses.push_back(loss); });
    engine->on_progress([this](const StartProgress& progress) {
      progress_lines.push_back(progress_line(progress));
    });
    engine->start();
  }
  MockRank& add_rank(MockRankOptions options) {
    options.tensor_parallel_size = options.tensor_parallel_size == 1
                                       ? config.worker.tensor_parallel_size
                                       : options.tensor_parallel_size;
    const std::string name =
        "rank-" + std::to_string(options.rank) + "-" + std::to_string(++num_peers_);
    auto endpoint = hub->make_client(scheduler.make_executor(name), name);
    ranks.push_back(std::make_unique<MockRank>(std::move(*endpoint), std::move(options)));
    ranks.back()->hello();
    return *ranks.back();
  }
  void add_ranks(MockRankOptions options = {}) {
    for (int32_t rank = 0; rank < config.worker.tensor_parallel_size; ++rank) {
      options.rank = rank;
      options.pid = next_pid_++;
      add_rank(options);
    }
  }
  void start_ready(MockRankOptions options = {}) {
    start();
    add_ranks(std::move(options));
    scheduler.run_until_idle();
    ASSERT_EQ(engine->stats().state, GroupState::kReady) << engine->stats().state_detail;
  }

  // The last pair of workers that came.
  MockRank& newest(int32_t rank) {
    return *ranks[ranks.size() - static_cast<size_t>(config.worker.tensor_parallel_size - rank)];
  }
  // The rank's process dies, its watcher hears of that and the group is lost; nobody comes instead.
  void lose(MockRank& rank) {
    kill(rank);
    scheduler.advance(std::chrono::milliseconds(20));
    ASSERT_EQ(engine->stats().state, GroupState::kWaiting);
  }
  // The rank's process dies, and whoever watches it hears of that.
  void kill(MockRank& rank) {
    rank.dead = true;
    gone_pids.insert(rank.options.pid);
    if (const auto found = watched.find(rank.options.pid); found != watched.end())
      std::exchange(found->second, [] {})();
  }

  RequestId submit(std::vector<TokenId> prompt, SamplingParams sampling) {
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.sampling = std::move(sampling);
    return submit(std::move(request));
  }
  RequestId submit(GenerateRequest request) {
    auto id = engine->submit(std::move(request), [this](RequestOutput output) {
      Answer& answer = answers[output.id];
      EXPECT_EQ(answer.finishes, 0) << "an output after the end of request " << output.id;
      for (const TokenOutput& token : output.tokens) answer.tokens.push_back(token.token);
      answer.outputs.insert(answer.outputs.end(), output.tokens.begin(), output.tokens.end());
      answer.text += output.text;
      answer.finish = output.finish;
      answer.finishes += output.finish != FinishReason::kNone;
      answer.stop_reason = output.stop_reason;
      answer.error = output.error;
      answer.prompt_tokens = output.prompt_tokens;
      answer.cached_tokens = output.cached_tokens;
      answer.output_tokens = output.output_tokens;
    });
    EXPECT_TRUE(id.has_value()) << (id ? "" : id.error().message);
    return id.value_or(0);
  }
  RequestId submit(std::vector<TokenId> prompt, int64_t max_tokens) {
    SamplingParams sampling;
    sampling.max_tokens = max_tokens;
    return submit(std::move(prompt), sampling);
  }
  std::vector<TokenId> expected(const std::vector<TokenId>& prompt, size_t max_tokens,
                                uint64_t eos_every = 0) const {
    return solo_run(prompt, max_tokens, 64, 500, eos_every);
  }
  // Of a client that got its whole answer.
  uint64_t completed() const {
    const EngineStats stats = engine->stats();
    return stats.requests_stopped + stats.requests_at_length;
  }
  bool all_blocks_free() const {
    const EngineStats stats = engine->stats();
    return stats.blocks_free == stats.blocks_total;
  }

  ManualScheduler scheduler;
  int output_threads = 1;      // executors of the output side
  int high_water_mark = 1024;  // frames for the engine that wait
  // The engine's executor, as it is to run on it; null: as it is.
  std::function<std::shared_ptr<Executor>(std::shared_ptr<Executor>)> wrap_engine;
  EngineConfig config;
  ModelConfig model;
  std::shared_ptr<const text::Tokenizer> tokenizer = fixture_tokenizer();
  std::shared_ptr<ipc::InprocHub> hub;
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<MockRank>> ranks;
  std::map<int64_t, std::function<void()>> watched;
  std::set<int64_t> gone_pids;
  std::vector<int64_t> killed;
  std::map<RequestId, Answer> answers;
  std::vector<GroupState> states;
  std::vector<GroupLoss> losses;
  std::vector<std::string> details, progress_lines;

 private:
  int64_t next_pid_ = 100;
  int num_peers_ = 0;
};

}  // namespace refrain::testing
