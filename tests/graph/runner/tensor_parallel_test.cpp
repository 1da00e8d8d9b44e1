// Ranks in threads of this process, joined by the host device's shared-memory collectives: they
// agree on every key, digest and token, and TP 1, 2 and 3 agree with transformers' tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <thread>

#include "runtime/base/json.h"
#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ipc::RuntimeMode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kOneProcess = "on CUDA every rank is a process with a GPU of its own";

// Runs `body(session)` for every rank in a thread of its own.
template <class Body>
void on_every_rank(const std::filesystem::path& model, SessionOptions options, int ranks,
                   Body body) {
  static int group = 0;
  options.config.tensor_parallel_size = ranks;
  options.token = fmt::format("tp-{}-{}", getpid(), ++group);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        SessionOptions mine = options;
        mine.rank = rank;
        Session session(model, mine);
        session.start();
        body(session, rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

TEST(TensorParallel, CG22RanksOfUnequalHeadsHaveEqualManifests) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << kOneProcess;
  TinyModelShape shape;
  shape.heads = 6;
  shape.kv_heads = 3;  // two ranks: 2 + 1
  const TinyModel model(shape);
  std::vector<ipc::Ready> ready(2);
  std::vector<std::vector<TokenId>> tokens(2);
  on_every_rank(model.directory(), {}, 2, [&](Session& session, int rank) {
    const auto i = static_cast<size_t>(rank);
    ready[i] = session.ready;
    for (int step = 0; step < 6; ++step) {
      const std::vector<TokenId> fed =
          step == 0 ? prompt(5, 1) : std::vector<TokenId>{kTokenOnDevice};
      const auto result = session.run({{0, fed, step == 0 ? 0 : 4 + step}});
      tokens[i].push_back(result.tokens[0]);
      EXPECT_EQ(result.rank, rank);
    }
  });
  EXPECT_EQ(tokens[0], tokens[1]);
  ASSERT_EQ(ready[0].manifest.size(), ready[1].manifest.size());
  ASSERT_FALSE(ready[0].manifest.empty());
  for (size_t i = 0; i < ready[0].manifest.size(); ++i) {
    EXPECT_EQ(ready[0].manifest[i].digest, ready[1].manifest[i].digest) << i;
    EXPECT_NE(ready[0].manifest[i].launch_digest, ready[1].manifest[i].launch_digest) << i;
    EXPECT_EQ(ready[0].manifest[i].num_tokens, ready[1].manifest[i].num_tokens) << i;
  }
}

TEST(TensorParallel, RanksWithoutNcclRefuseToSumByItAlone) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "GPUs have NCCL";
  const TinyModel model;
  SessionOptions options;
  options.config.disable_custom_all_reduce = true;
  const auto run = [&](int ranks) {
    on_every_rank(model.directory(), options, ranks, [](Session&, int) {});
  };
  EXPECT_NO_THROW(run(1)) << "one rank sums with nobody";
  EXPECT_THAT([&] { run(2); }, ThrowsMessage<FatalError>(AllOf(
                                   HasSubstr("disable_custom_all_reduce"), HasSubstr("host"))));
}

// CG-25: memory that ends on one rank drops the key on every rank, so that they still agree.
TEST(TensorParallel, CG25RanksDropTheSameKeys) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << kOneProcess;
  const TinyModel model;
  size_t used = 0, graphs = 0;
  on_every_rank(model.directory(), {}, 2, [&](Session& session, int rank) {
    if (rank != 1) return;
    const auto memory = session.device().memory();
    for (size_t bytes : memory.by_tag) used += bytes;
    graphs = memory.by_tag[static_cast<int>(worker::MemoryTag::kGraphs)];
  });
  SessionOptions options;
  options.config.num_gpu_blocks_override = options.num_blocks;
  std::vector<std::vector<std::string>> keys(2);
  std::vector<std::string> warnings(2);
  // Rank 1 alone has room for half of its graphs.
  options.limit_of_rank_1 = used - graphs / 2;
  on_every_rank(model.directory(), options, 2, [&](Session& session, int rank) {
    for (const ipc::ManifestEntry& e : session.ready.manifest) {
      keys[static_cast<size_t>(rank)].push_back(fmt::format("{} {}", e.mode, e.num_tokens));
    }
    for (const auto& w : session.ready.warnings) warnings[static_cast<size_t>(rank)] += w;
    EXPECT_GE(session.run({{0, prompt(5, 1), 0}}).tokens[0], 0);
  });
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_LT(keys[0].size(), 10u);
  EXPECT_FALSE(keys[0].empty());
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("another rank"));
  EXPECT_THAT(warnings[1], ::testing::HasSubstr("bytes were missing"));
}

// Rows that need all logits beside rows that need only each rank's best token, in any order.
TEST(TensorParallel, ARowsTokensDoNotDependOnWhoseLogitsAreGathered) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << kOneProcess;
  const TinyModel model;
  for (const char* mode : {"NONE", "FULL_AND_PIECEWISE"}) {
    std::vector<std::vector<TokenId>> tokens[2];
    for (const bool keep : {false, true}) {
      SessionOptions options = with_mode(mode);
      options.keep_logits = keep;
      std::vector<std::vector<TokenId>> of_rank(2);
      on_every_rank(model.directory(), options, 2, [&](Session& session, int rank) {
        auto& out = of_rank[static_cast<size_t>(rank)];
        const auto step = [&](std::vector<Row> rows) {
          const auto result = session.run(rows);
          out.insert(out.end(), result.tokens.begin(), result.tokens.end());
        };
        step({{0, prompt(5, 1), 0}});  // greedy alone
        session.setup().temperature = 1.5f;
        session.setup().seed = 77;
        step({{1, prompt(7, 2), 0}});
        session.setup().temperature = 0;
        step({{2, prompt(3, 3), 0}});
        for (int i = 0; i < 6; ++i) {
          const int greedy = 2 * i;
          step({{0, {kTokenOnDevice}, 5 + greedy},
                {1, {kTokenOnDevice}, 7 + i},
                {2, {kTokenOnDevice}, 3 + greedy}});
          step({{0, {kTokenOnDevice}, 6 + greedy}, {2, {kTokenOnDevice}, 4 + greedy}});
        }
      });
      EXPECT_EQ(of_rank[0], of_rank[1]);
      tokens[keep] = of_rank;
    }
    EXPECT_EQ(tokens[0], tokens[1]) << mode;
    for (const TokenId token : tokens[0][0]) EXPECT_GE(token, 0);
  }
}

struct Golden {
  std::vector<TokenId> prompt, output;
  std::vector<double> margins;
};

std::vector<Golden> read_golden(const std::filesystem::path& directory) {
  std::ifstream file(directory / "expected.json");
  std::vector<Golden> entries;
  for (const auto& row : nlohmann::json::parse(file)) {
    entries.push_back({row["prompt_ids"], row["output_ids"], row["margins"]});
  }
  return entries;
}

// All prompts as one continuous batch: whole prompts one after the other, then decodes together.
std::vector<std::vector<TokenId>> generate(Session& session, const std::vector<Golden>& golden,
                                           std::vector<RuntimeMode>& modes) {
  std::vector<std::vector<TokenId>> output(golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    const auto result = session.run({{static_cast<SlotId>(i), golden[i].prompt, 0}});
    output[i].push_back(result.tokens[0]);
    modes.push_back(result.mode);
  }
  while (true) {
    std::vector<Row> rows;
    for (size_t i = 0; i < golden.size(); ++i) {
      if (output[i].size() == golden[i].output.size()) continue;
      rows.push_back({static_cast<SlotId>(i),
                      {kTokenOnDevice},
                      static_cast<int32_t>(golden[i].prompt.size() + output[i].size() - 1)});
    }
    if (rows.empty()) return output;
    const auto result = session.run(rows);
    modes.push_back(result.mode);
    for (size_t r = 0; r < rows.size(); ++r) {
      output[static_cast<size_t>(rows[r].slot)].push_back(result.tokens[r]);
    }
  }
}

// Equal but for steps whose margin is below 0.02 (tests/fixtures/models/README.md).
void expect_golden(const std::vector<TokenId>& got, const Golden& golden,
                   const std::string& where) {
  for (size_t i = 0; i < golden.output.size(); ++i) {
    if (got[i] == golden.output[i]) continue;
    EXPECT_LT(golden.margins[i], 0.02) << where << " token " << i;
    return;
  }
}

struct GoldenCase {
  const char* model;
  int ranks;
  const char* mode;
};
class GoldenTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenTest, GivesTheTokensOfTransformers) {
  const GoldenCase& c = GetParam();
  if (c.ranks > 1 && SessionOptions{}.device != "host") GTEST_SKIP() << kOneProcess;
  const std::filesystem::path directory = std::filesystem::path("tests/fixtures/models") / c.model;
  const std::vector<Golden> golden = read_golden(directory);
  ASSERT_EQ(golden.size(), 6u);
  SessionOptions options;
  options.config.cudagraph_mode = c.mode;
  options.config.max_num_batched_tokens = 320;
  options.config.max_model_len = 384;
  options.config.block_size = 16;
  options.num_blocks = 1 + 6 * 24;
  options.keep_logits = false;  // as when serving: greedy tokens follow from each rank's best ones
  on_every_rank(directory, options, c.ranks, [&](Session& session, int rank) {
    std::vector<RuntimeMode> modes;
    const auto output = generate(session, golden, modes);
    for (size_t i = 0; i < golden.size(); ++i) {
      expect_golden(output[i], golden[i], fmt::format("rank {} prompt {}", rank, i));
    }
    const bool graphs = std::string(c.mode) != "NONE";
    EXPECT_EQ(std::count(modes.begin(), modes.end(), RuntimeMode::kNone) ==
                  static_cast<int64_t>(modes.size()),
              !graphs);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models, GoldenTest,
    ::testing::Values(GoldenCase{"llama-sharded", 1, "FULL_AND_PIECEWISE"},
                      GoldenCase{"llama-sharded", 2, "FULL"}, GoldenCase{"llama3-rope", 1, "FULL"},
                      GoldenCase{"llama3-rope", 2, "PIECEWISE"},
                      GoldenCase{"llama-bias-f32", 1, "NONE"},
                      GoldenCase{"llama-bias-f32", 1, "FULL_AND_PIECEWISE"},
                      GoldenCase{"llama-bias-f32", 2, "FULL_AND_PIECEWISE"},
                      GoldenCase{"llama-bias-f32", 3, "FULL_DECODE_ONLY"},
                      GoldenCase{"qwen2", 1, "FULL_AND_PIECEWISE"}, GoldenCase{"qwen2", 2, "NONE"},
                      GoldenCase{"qwen3", 1, "PIECEWISE"}, GoldenCase{"qwen3", 2, "FULL"}),
    [](const auto& info) {
      std::string name =
          fmt::format("{}_tp{}_{}", info.param.model, info.param.ranks, info.param.mode);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace refrain::tests
