// CG-27, CG-28, CG-29 in bfloat16 on the shapes that are served: heads of 64 and 128, 2 and 8 KV
// heads, 4 and 8 queries to each. The capture sizes leave wide gaps, so that steps of few rows run
// at the key of 128: on CUDA that is attention by stream, by tensor cores and, with at most four
// tokens, fused with RoPE. Some have a key of 8 before it: fused with RoPE on tensor cores.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ipc::RuntimeMode;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr double kTolerance = 0.03;  // of the largest logit; CUDA at different keys

struct Geometry {
  const char* name;
  int heads, kv_heads, head_dim;
  std::vector<int32_t> capture_sizes;
};
const Geometry kGeometries[] = {
    {"Heads8Kv2Of64", 8, 2, 64, {1, 4, 8, 128}},
    {"Heads16Kv2Of128", 16, 2, 128, {1, 4, 128}},
#if !defined(REFRAIN_TSAN) && !defined(REFRAIN_ASAN)  // slow, and the same code
    {"Heads64Kv8Of64", 64, 8, 64, {1, 4, 128}},
    {"Heads32Kv8Of128", 32, 8, 128, {1, 4, 8, 128}},
#endif
};

const TinyModel& model_of(const Geometry& geometry) {
  static std::map<std::string, std::unique_ptr<TinyModel>> models;
  auto& model = models[geometry.name];
  if (model == nullptr) {
    TinyModelShape shape;
    shape.hidden = 192;
    shape.inner = 192;
    shape.heads = geometry.heads;
    shape.kv_heads = geometry.kv_heads;
    shape.head_dim = geometry.head_dim;
    shape.bfloat16 = true;
    model = std::make_unique<TinyModel>(shape);
  }
  return *model;
}

SessionOptions options_of(const std::string& mode, const Geometry& geometry) {
  SessionOptions options = with_mode(mode);
  options.config.dtype = "bfloat16";
  options.config.max_num_seqs = 128;
  options.config.max_num_batched_tokens = 160;
  options.config.max_model_len = 192;
  options.config.block_size = 16;
  options.config.cudagraph_capture_sizes = geometry.capture_sizes;
  options.num_blocks = 1 + 6 * 12;  // of the slots 0 to 5
  return options;
}

struct Step {
  std::vector<float> logits;
  RuntimeMode mode;
};

std::vector<TokenId> part(const std::vector<TokenId>& tokens, int begin, int end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

// The tokens are given, not sampled, so that the last bits of a step do not change the next one's
// input. Steps that are alone and mixed, chunks, decodes at every key, one above all keys.
std::vector<Step> play_batches(Session& session) {
  std::vector<Step> steps;
  const auto run = [&](const std::vector<Row>& rows) {
    const ipc::StepResult result = session.run(rows);
    steps.push_back({session.runner().read_logits(), result.mode});
  };
  const std::vector<TokenId> chunked = prompt(110, 5);
  run({{0, prompt(3, 0), 0}});
  run({{0, {11}, 3}});
  run({{1, prompt(100, 1), 0}});
  run({{0, {12}, 4}, {1, {13}, 100}, {2, prompt(30, 2), 0}});
  run({{0, {14}, 5}, {1, {15}, 101}, {2, {16}, 30}});
  run({{3, prompt(3, 3), 0}, {4, prompt(1, 4), 0}});
  run({{0, {17}, 6}, {1, {18}, 102}, {2, {19}, 31}, {3, {20}, 3}, {4, {21}, 1}});
  run({{5, part(chunked, 0, 70), 0}, {0, {22}, 7}});
  run({{5, part(chunked, 70, 110), 70}, {1, {23}, 103}});
  run({{0, {24}, 8}, {1, {25}, 104}, {2, {26}, 32}, {3, {27}, 4}, {4, {28}, 2}, {5, {29}, 110}});
  run({{0, prompt(140, 6), 0}});
  run({{0, {30}, 140}, {1, {31}, 105}});
  return steps;
}

std::vector<Step> steps_of(const Geometry& geometry, const SessionOptions& options,
                           bool eager_at_key = false) {
  Session session(model_of(geometry).directory(), options);
  session.start();
  session.runner().run_eager_at_key(eager_at_key);
  return play_batches(session);
}

const std::vector<Step>& steps_of_none(const Geometry& geometry) {
  static std::map<std::string, std::vector<Step>> known;
  auto& steps = known[geometry.name];
  if (steps.empty()) steps = steps_of(geometry, options_of("NONE", geometry));
  return steps;
}

// The runtime modes of play_batches(), by configured mode.
std::vector<RuntimeMode> modes_of(const std::string& mode) {
  const auto n = RuntimeMode::kNone, p = RuntimeMode::kPiecewise, f = RuntimeMode::kFull;
  if (mode == "PIECEWISE") return {p, p, p, p, p, p, p, p, p, p, n, p};
  if (mode == "FULL") return {f, f, f, f, f, f, f, f, f, f, n, f};
  if (mode == "FULL_DECODE_ONLY") return {n, f, n, n, f, n, f, n, n, f, n, f};
  if (mode == "FULL_AND_PIECEWISE") return {p, f, p, p, f, p, f, p, p, f, n, f};
  return std::vector<RuntimeMode>(12, n);
}

void expect_modes(const std::vector<Step>& steps, const std::vector<RuntimeMode>& expected) {
  std::vector<RuntimeMode> modes;
  for (const Step& step : steps) modes.push_back(step.mode);
  EXPECT_EQ(modes, expected);
}

void expect_same_steps(const std::vector<Step>& got, const std::vector<Step>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(fmt::format("step {}", i));
    ASSERT_FALSE(expected[i].logits.empty());
    for (const float value : expected[i].logits) ASSERT_TRUE(std::isfinite(value));
    expect_same_values(got[i].logits, expected[i].logits, kTolerance);
  }
}

class GeometryOfMode : public ::testing::TestWithParam<std::tuple<Geometry, const char*>> {
 protected:
  const Geometry geometry_ = std::get<0>(GetParam());
  const std::string mode_ = std::get<1>(GetParam());
};

// CG-29: nor does debug mode, which compares addresses at each replay, find any that moved.
TEST_P(GeometryOfMode, CG28GivesTheLogitsOfNoneCG29MovesNothing) {
  SessionOptions options = options_of(mode_, geometry_);
  options.config.debug_cudagraph = true;
  options.threads = 2;
  const std::vector<Step> steps = steps_of(geometry_, options);
  expect_modes(steps, modes_of(mode_));
  expect_same_steps(steps, steps_of_none(geometry_));
}

TEST_P(GeometryOfMode, CG27PoisonedPaddingReachesNoLiveRow) {
  SessionOptions options = options_of(mode_, geometry_);
  options.poison_padding = true;
  const std::vector<Step> steps = steps_of(geometry_, options);
  expect_modes(steps, modes_of(mode_));
  expect_same_steps(steps, steps_of_none(geometry_));
}

// With and without graphs at the padded key: the same kernels, so equal bits on CUDA too. The
// splitting ops of PIECEWISE take the same rows in both.
TEST_P(GeometryOfMode, CG28EagerRunAtThePaddedKeyGivesTheSameBits) {
  const std::vector<Step> graphs = steps_of(geometry_, options_of(mode_, geometry_));
  const std::vector<Step> eager = steps_of(geometry_, options_of(mode_, geometry_), true);
  expect_modes(graphs, modes_of(mode_));
  expect_modes(eager, modes_of("NONE"));
  ASSERT_EQ(graphs.size(), eager.size());
  for (size_t i = 0; i < graphs.size(); ++i) {
    EXPECT_EQ(graphs[i].logits, eager[i].logits) << "step " << i;
  }
}

#ifdef REFRAIN_TSAN  // threads do the same in all of them
const auto kGeometryModes = ::testing::Values("FULL_AND_PIECEWISE");
#else
const auto kGeometryModes =
    ::testing::Values("PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE");
#endif
INSTANTIATE_TEST_SUITE_P(Served, GeometryOfMode,
                         ::testing::Combine(::testing::ValuesIn(kGeometries), kGeometryModes),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param);
                         });

class GeometryTest : public ::testing::TestWithParam<Geometry> {};

TEST_P(GeometryTest, CG28ChunksAndNeighboursChangeNoLogit) {
  const auto session = started(options_of("FULL_AND_PIECEWISE", GetParam()), model_of(GetParam()));
  const std::vector<TokenId> tokens = prompt(90, 3);
  session->run({{0, tokens, 0}});
  const std::vector<float> whole = session->runner().read_logits();
  session->run({{1, part(tokens, 0, 17), 0}});
  session->run({{1, part(tokens, 17, 18), 17}, {2, prompt(40, 8), 0}});
  session->run({{3, prompt(4, 8), 0}, {1, part(tokens, 18, 90), 18}, {4, prompt(3, 9), 0}});
  const std::vector<float> batched = session->runner().read_logits();
  const auto vocab = static_cast<int64_t>(whole.size());
  ASSERT_EQ(std::ssize(batched), 3 * vocab);
  expect_same_values({batched.begin() + vocab, batched.begin() + 2 * vocab}, whole, kTolerance);
}

// --batch-invariant: on CUDA too, the bits of a request's logits follow from its tokens alone.
TEST_P(GeometryTest, CG28BatchInvariantLogitsHaveTheSameBitsHoweverTheyAreComputed) {
  const std::vector<TokenId> tokens = prompt(100, 3);
  std::vector<std::vector<float>> expected;  // behind 90 to 99 tokens
  for (const char* mode : {"NONE", "FULL", "PIECEWISE", "FULL_AND_PIECEWISE"}) {
    SCOPED_TRACE(mode);
    SessionOptions options = options_of(mode, GetParam());
    options.config.batch_invariant = true;
    options.poison_padding = true;
    const auto session = started(options, model_of(GetParam()));
    const auto run = [&](const std::vector<Row>& rows, int row) {  // that row's logits
      session->run(rows);
      const std::vector<float> all = session->runner().read_logits();
      const std::ptrdiff_t vocab = std::ssize(all) / std::ssize(rows);
      return std::vector<float>(all.begin() + row * vocab, all.begin() + (row + 1) * vocab);
    };
    std::vector<std::vector<float>> alone, among, chunks;
    session->run({{0, part(tokens, 0, 90), 0}});
    for (int at = 90; at < 100; ++at) {
      alone.push_back(run({{0, {tokens[static_cast<size_t>(at)]}, at}}, 0));
    }
    // Beside others, in batches of up to five rows and beside prompts.
    session->run({{1, part(tokens, 0, 40), 0}, {2, prompt(60, 8), 0}});
    session->run({{2, {7}, 60}, {1, part(tokens, 40, 90), 40}, {3, prompt(5, 9), 0}});
    for (int at = 90; at < 100; ++at) {
      std::vector<Row> rows = {{2, {8}, at - 29}, {1, {tokens[static_cast<size_t>(at)]}, at}};
      if (at % 2 == 0) rows.push_back({3, {9}, 5 + (at - 90) / 2});
      if (at % 3 == 0) rows.push_back({4, prompt(20 + at, 4), 0});
      among.push_back(run(rows, 1));
    }
    // Each as the end of a prompt of its own, cut somewhere.
    for (int at = 90; at < 100; ++at) {
      const int cut = 1 + at * 7 % 80;
      session->run({{5, part(tokens, 0, cut), 0}});
      chunks.push_back(run({{5, part(tokens, cut, at + 1), cut}, {0, {3}, 100}}, 0));
    }
    if (expected.empty()) expected = alone;
    EXPECT_EQ(alone, expected);
    EXPECT_EQ(among, expected);
    EXPECT_EQ(chunks, expected);
  }
}

// Steps that run each form of the Program that a device may have, whatever the number of KV heads.
std::vector<std::vector<Row>> steps_of_every_form() {
  std::vector<Row> prompts, decodes;
  for (int slot = 0; slot < 100; ++slot) {
    prompts.push_back({slot, prompt(2, slot), 0});
    decodes.push_back({slot, {11 + slot}, 2});
  }
  std::vector<std::vector<Row>> steps = {{prompts.begin(), prompts.begin() + 50},
                                         {prompts.begin() + 50, prompts.end()}};
  for (const int count : {1, 5, 16, 40, 50, 60, 100})
    steps.push_back({decodes.begin(), decodes.begin() + count});
  for (const int tokens : {2, 3, 9, 60, 140}) steps.push_back({{0, prompt(tokens, 0), 0}});
  return steps;
}

TEST_P(GeometryTest, CG29MovedCacheIsNamedInEveryLowering) {
  SessionOptions options = options_of("FULL_AND_PIECEWISE", GetParam());
  options.config.debug_cudagraph = true;
  options.config.cudagraph_capture_sizes = {1, 2, 4, 8, 16, 48, 56, 64, 128, 160};
  options.num_blocks = 1 + 100 * 12;
  const auto sound = started(options, model_of(GetParam()));
  std::vector<std::pair<int32_t, bool>> keys;  // tokens, and whether of decodes
  for (const auto& step : steps_of_every_form()) {
    const ipc::StepResult result = sound->run(step);
    keys.emplace_back(result.key_tokens, result.key_uniform);
  }
  EXPECT_EQ(keys, (std::vector<std::pair<int32_t, bool>>{{128, false},
                                                         {128, false},
                                                         {1, true},
                                                         {8, true},
                                                         {16, true},
                                                         {48, true},
                                                         {56, true},
                                                         {64, true},
                                                         {128, true},
                                                         {2, false},
                                                         {4, false},
                                                         {16, false},
                                                         {64, false},
                                                         {160, false}}));
  for (size_t i = 0; i < sound->runner().hosted().lowerings().size(); ++i) {
    const auto session = started(options, model_of(GetParam()));
    worker::Lowering& lowering = *session->runner().hosted().lowerings()[i];
    for (size_t value = 0; value < lowering.program.values.size(); ++value) {
      if (lowering.program.values[value].name != "kv_cache.1") continue;
      worker::Addresses& addresses = lowering.context.addresses[value];
      addresses.fill(static_cast<std::byte*>(addresses[0]) + 256);
    }
    std::string message = "nothing was noticed";
    try {
      for (const auto& step : steps_of_every_form()) session->run(step);
    } catch (const FatalError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(HasSubstr("cache"), HasSubstr("kv_cache.1"))) << "lowering " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Served, GeometryTest, ::testing::ValuesIn(kGeometries),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace refrain::tests
