#pragma once
// One rank for tests: device (REFRAIN_TEST_DEVICE, else host), runner, and a small scheduler that
// plays the coordinator's part (slots, blocks, steps). Destroyed in the order runner, device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/config/model/model_config.h"
#include "tests/graph/tiny_model.h"
#include "worker/device/factory/factory.h"
#include "worker/runner/program_runner.h"

namespace refrain::tests {

struct SessionOptions {
  ipc::WorkerConfig config = default_config();
  int rank = 0;
  std::string token = "graph-test";
  int threads = 1;
  std::string isa = std::getenv("REFRAIN_HOST_ISA") ? std::getenv("REFRAIN_HOST_ISA") : "";
  std::string device =
      std::getenv("REFRAIN_TEST_DEVICE") ? std::getenv("REFRAIN_TEST_DEVICE") : "host";
  size_t memory_limit = 0;
  size_t limit_of_rank_1 = 0;
  bool poison_padding = false;
  bool keep_logits = true;  // tests read them
  // Puts another device around the one that was made; null: none.
  std::function<std::unique_ptr<worker::Device>(std::unique_ptr<worker::Device>)> wrap_device;
  int64_t num_blocks = 64;
  LoraPaths adapters = {};
  int contexts = 1;
  // When all addresses are fixed, and nothing is captured; null: nothing.
  std::function<void(worker::ProgramRunner&)> before_capture;
  std::filesystem::path draft = {};  // directory of a draft model; empty: none

  static ipc::WorkerConfig default_config() {
    ipc::WorkerConfig config;
    config.max_num_seqs = 6;
    config.max_num_batched_tokens = 48;
    config.max_model_len = 64;
    config.block_size = 8;
    config.dtype = "float32";
    config.has_capture_sizes = true;
    config.cudagraph_capture_sizes = {1, 2, 4, 8, 16};
    return config;
  }
};

// One row of a step: `tokens` new tokens (kTokenOnDevice: the last sampled) after `computed`.
struct Row {
  SlotId slot;
  std::vector<TokenId> tokens;
  int32_t computed;
  bool verifies = false;  // tokens are drafts after the last one; computed is a bound
};

class Session {
 public:
  Session(const std::filesystem::path& model, const SessionOptions& options) : options_(options) {
    const size_t limit = options.rank == 1 && options.limit_of_rank_1 != 0 ? options.limit_of_rank_1
                                                                           : options.memory_limit;
    auto device = worker::create_device(
        options.device, {options.threads, options.isa, limit, false}, {0, 1, limit});
    if (!device) throw FatalError(device.error().message);
    device_ = options.wrap_device ? options.wrap_device(std::move(*device)) : std::move(*device);
    auto config = load_model_config(model);
    if (!config) throw FatalError(config.error().message);
    worker::RunnerOptions runner_options{model,
                                         *config,
                                         options.config,
                                         options.rank,
                                         options.token,
                                         options.poison_padding,
                                         options.keep_logits};
    runner_options.adapters = options.adapters;
    runner_options.contexts = options.contexts;
    if (!options.draft.empty()) {
      runner_options.draft_directory = options.draft;
      runner_options.draft = *load_model_config(options.draft);
      runner_options.config.draft_model = true;
    }
    auto runner = worker::ProgramRunner::create(
        runner_options, *device_, [this](const ipc::Progress& p) { progress.push_back(p); });
    if (!runner) throw FatalError(runner.error().message);
    runner_ = std::move(*runner);
    setup_.temperature = 0.0f;
    next_block_.assign(static_cast<size_t>(options.config.max_num_seqs), 0);
  }

  void start() {
    auto loaded = runner_->load();
    if (!loaded) throw FatalError(loaded.error().message);
    const Status cache =
        runner_->init_cache(std::vector<int64_t>(num_groups(), options_.num_blocks));
    if (!cache) throw FatalError(cache.error().message);
    if (options_.before_capture) options_.before_capture(*runner_);
    const Status captured = runner_->capture();
    if (!captured) throw FatalError(captured.error().message);
    auto backed = runner_->back_cache();
    if (!backed) throw FatalError(backed.error().message);
    ready = std::move(*backed);
  }

  // A step of these rows; blocks are given out as the rows need them.
  ipc::Step make_step(const std::vector<Row>& rows) {
    ipc::Step step;
    step.step = ++steps_;
    step.blocks.resize(num_groups());
    ipc::Run run;
    int decodes = 0;
    for (const Row& row : rows) {
      const auto count = static_cast<int32_t>(row.tokens.size());
      if (row.computed == 0) {
        next_block_[static_cast<size_t>(row.slot)] = 0;
        ipc::SlotSetup setup = setup_;
        setup.slot = row.slot;
        setup.prompt_len = count;
        step.setups.push_back(setup);
      }
      decodes += count == 1 && row.computed > 0 ? 1 : 0;
      run.rows.slot.push_back(row.slot);
      run.rows.num_tokens.push_back(count);
      run.rows.computed.push_back(row.verifies ? ipc::kComputedOnDevice : row.computed);
      run.rows.flags.push_back(
          static_cast<uint8_t>(row.verifies ? ipc::kSamples | ipc::kVerifies : ipc::kSamples));
      run.rows.token_ids.insert(run.rows.token_ids.end(), row.tokens.begin(), row.tokens.end());
      int32_t& have = next_block_[static_cast<size_t>(row.slot)];
      const int32_t block_size = options_.config.block_size;
      // A draft model goes on from the last token.
      const int32_t beyond = options_.draft.empty() ? 0 : options_.config.num_speculative_tokens;
      for (; have * block_size < row.computed + count + beyond; ++have) {
        for (ipc::BlockUpdates& group : step.blocks) {
          group.slot.push_back(row.slot);
          group.index.push_back(have);
          // Every slot has its own stretch of blocks; block 0 is reserved.
          const int32_t per_slot = (options_.config.max_model_len + block_size - 1) / block_size;
          group.block.push_back(1 + row.slot * per_slot + have);
        }
      }
    }
    const int prefills = static_cast<int>(rows.size()) - decodes;
    run.mode = prefills == 0  ? ipc::ForwardMode::kDecode
               : decodes == 0 ? ipc::ForwardMode::kExtend
                              : ipc::ForwardMode::kMixed;
    if (!rows.empty()) step.runs.push_back(std::move(run));
    if (!rows.empty() && !options_.draft.empty()) {
      step.runs.push_back({ipc::ProgramId::kDraftModel, ipc::ForwardMode::kDraftExtend, {}});
    }
    return step;
  }

  ipc::StepResult run(const std::vector<Row>& rows) {
    runner_->submit(make_step(rows));
    return runner_->wait();
  }

  // `count` elements of device memory.
  template <class T>
  std::vector<T> read(const T* from, size_t count) {
    const auto pinned = device_->allocate_pinned(count * sizeof(T));
    const auto stream = device_->create_stream();
    stream->copy(pinned->data(), from, count * sizeof(T));
    stream->synchronize();
    return {static_cast<const T*>(pinned->data()), static_cast<const T*>(pinned->data()) + count};
  }

  worker::ProgramRunner& runner() { return *runner_; }
  worker::Device& device() { return *device_; }
  const SessionOptions& options() const { return options_; }
  ipc::SlotSetup& setup() { return setup_; }
  const worker::GraphCounters& counters() { return runner_->pool().counters(); }

  ipc::Ready ready;
  std::vector<ipc::Progress> progress;

 private:
  size_t num_groups() const { return options_.draft.empty() ? 1 : 2; }

  SessionOptions options_;
  std::unique_ptr<worker::Device> device_;
  std::unique_ptr<worker::ProgramRunner> runner_;
  std::vector<int32_t> next_block_;
  ipc::SlotSetup setup_;
  StepId steps_ = 0;
};

inline constexpr int kLayers = 2;  // of the tiny model

inline const TinyModel& model() {
  static const TinyModel tiny;
  return tiny;
}

inline SessionOptions with_mode(const std::string& mode) {
  SessionOptions options;
  options.config.cudagraph_mode = mode;
  return options;
}

inline std::unique_ptr<Session> started(const SessionOptions& options = {},
                                        const TinyModel& of = model()) {
  auto session = std::make_unique<Session>(of.directory(), options);
  session->start();
  return session;
}

// Logits of the same tokens run at different keys: equal bits on the host; on CUDA kernels may
// differ by the key, and so may the last bits.
inline void expect_same_values(const std::vector<float>& got, const std::vector<float>& expected,
                               double tolerance = 1e-4) {
  if (SessionOptions{}.device == "host") {
    EXPECT_EQ(got, expected);
    return;
  }
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  for (float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * largest) << "logit " << i;
  }
}

// A prompt of `count` tokens, different for every `seed`.
inline std::vector<TokenId> prompt(int count, int seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (i * 31 + seed * 57) % 250);
  return tokens;
}

}  // namespace refrain::tests
