// LoRA adapters of a runner: equal to the merged checkpoint in every mode and at TP 1 and 2, mixed
// in one batch as each alone, changing under the graphs that were captured without them.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_adapter.h"

namespace refrain::tests {
namespace {

using ipc::RuntimeMode;

constexpr int32_t kPlaces = 2;

SessionOptions lora_options(const std::string& mode, const std::vector<const TinyAdapter*>& all) {
  SessionOptions options = with_mode(mode);
  options.config.max_loras = kPlaces;
  options.config.max_lora_rank = 16;
  options.config.audit = true;
  for (size_t i = 0; i < all.size(); ++i)
    options.adapters.modules.push_back(
        {"adapter-" + std::to_string(i + 1), all[i]->directory().string()});
  return options;
}

void load_adapter_of(Session& session, AdapterId id) {
  const std::string name = "adapter-" + std::to_string(id);
  const auto path = session.options().adapters.find_module(name);
  ASSERT_TRUE(session.runner().read_adapter({id, name, *adapter_digest(*path)}, [] {}));
  const Status loaded = session.runner().add_adapter(id, [] {});
  ASSERT_TRUE(loaded) << loaded.error().message;
}

struct LoraRows {
  std::vector<ipc::AdapterPlacement> placements = {};
  std::vector<int32_t> places = {};  // by row; -1: none
};

ipc::StepResult run_lora(Session& session, const std::vector<Row>& rows, const LoraRows& lora) {
  ipc::Step step = session.make_step(rows);
  step.audit = true;
  step.placements = lora.placements;
  for (size_t row = 0; row < rows.size(); ++row) {
    step.has_lora |= lora.places[row] >= 0;
    for (ipc::SlotSetup& setup : step.setups)
      if (setup.slot == rows[row].slot) setup.adapter = lora.places[row];
  }
  session.runner().submit(step);
  ipc::StepResult result = session.runner().wait();
  EXPECT_EQ(result.audit.differences, 0) << result.audit.first;
  return result;
}

struct LoraTrace {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;
  std::vector<RuntimeMode> modes;
};

// A prompt in two chunks, then decodes, of one request with the adapter at `place`.
LoraTrace generate_with(Session& session, int32_t place,
                        std::vector<ipc::AdapterPlacement> placements, int seed = 1,
                        SlotId slot = 0) {
  LoraTrace trace;
  const std::vector<TokenId> tokens = prompt(11, seed);
  const auto step = [&](std::vector<TokenId> fed, int32_t computed) {
    const auto result =
        run_lora(session, {{slot, std::move(fed), computed}}, {placements, {place}});
    placements.clear();
    trace.tokens.push_back(result.tokens[0]);
    trace.logits.push_back(session.runner().read_logits());
    trace.modes.push_back(result.mode);
    const bool single = !session.options().config.cudagraph_specialize_lora;
    EXPECT_EQ(result.key_lora, place >= 0 || single);
  };
  step({tokens.begin(), tokens.begin() + 7}, 0);
  step({tokens.begin() + 7, tokens.end()}, 7);
  for (int32_t at = 11; at < 17; ++at) step({kTokenOnDevice}, at);
  return trace;
}

void expect_close_traces(const LoraTrace& got, const LoraTrace& expected,
                         const std::string& where) {
  EXPECT_EQ(got.tokens, expected.tokens) << where;
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  for (size_t i = 0; i < got.logits.size(); ++i) {
    float largest = 0, worst = 0;
    for (size_t k = 0; k < got.logits[i].size(); ++k) {
      largest = std::max(largest, std::abs(expected.logits[i][k]));
      worst = std::max(worst, std::abs(got.logits[i][k] - expected.logits[i][k]));
    }
    EXPECT_LT(worst, 1e-4f * largest) << where << " step " << i;
  }
}

// The ranks of a group, each in a thread; `body(session, rank)`.
template <class Body>
void on_ranks(const std::filesystem::path& model, SessionOptions options, int ranks, Body body) {
  static int group = 0;
  options.config.tensor_parallel_size = ranks;
  options.token = fmt::format("lora-{}-{}", getpid(), ++group);
  std::vector<std::thread> threads;
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
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

struct MergedCase {
  const char* mode;
  int ranks;
  TinyAdapterShape adapter;
};

class LoraMerged : public testing::TestWithParam<MergedCase> {};

TEST_P(LoraMerged, EqualsTheMergedCheckpoint) {
  const MergedCase& c = GetParam();
  if (c.ranks > 1 && SessionOptions{}.device != "host")
    GTEST_SKIP() << "on CUDA every rank is a process with a GPU of its own";
  const TinyAdapter adapter(model().shape(), c.adapter);
  const TemporaryDirectory merged;
  adapter.merge(model().directory(), merged.path());
  LoraTrace expected, base, got;
  {
    SessionOptions plain = with_mode("NONE");
    plain.config.audit = true;
    const auto session = std::make_unique<Session>(merged.path(), plain);
    session->start();
    expected = generate_with(*session, -1, {});
    const auto of_base = started(plain);
    base = generate_with(*of_base, -1, {});
  }
  EXPECT_NE(expected.tokens, base.tokens) << "the adapter changes nothing";
  on_ranks(model().directory(), lora_options(c.mode, {&adapter}), c.ranks,
           [&](Session& session, int rank) {
             load_adapter_of(session, 1);
             const LoraTrace with = generate_with(session, 1, {{1, 1}});
             const LoraTrace without = generate_with(session, -1, {});
             if (rank != 0) return;
             got = with;
             expect_close_traces(without, base, "without an adapter");
           });
  expect_close_traces(got, expected, c.mode);
  const bool graphs = std::string(c.mode) != "NONE";
  for (const RuntimeMode mode : got.modes) EXPECT_EQ(mode != RuntimeMode::kNone, graphs);
}

const TinyAdapterShape kNarrow = {.rank = 3, .alpha = 4, .targets = {"q_proj", "v_proj"}};
const TinyAdapterShape kRootScaled = {.rank = 16, .alpha = 4, .rslora = true, .seed = 3};
INSTANTIATE_TEST_SUITE_P(
    Modes, LoraMerged,
    testing::Values(MergedCase{"NONE", 1, {}}, MergedCase{"PIECEWISE", 1, {}},
                    MergedCase{"FULL", 1, {}}, MergedCase{"FULL_AND_PIECEWISE", 1, kRootScaled},
                    MergedCase{"NONE", 2, {}}, MergedCase{"PIECEWISE", 2, kNarrow},
                    MergedCase{"FULL", 2, kRootScaled}, MergedCase{"FULL_AND_PIECEWISE", 2, {}}));

class LoraInBfloat16 : public testing::TestWithParam<std::vector<std::string>> {};

// Logits are float32 whatever the activations are. Behind a norm whose weight is part of the
// linear's (fold_norms) it is part of the adapter's, too.
TEST_P(LoraInBfloat16, AnAdapterAnswersAsItsMergedCheckpoint) {
  const TinyAdapter adapter(model().shape(), {.targets = GetParam()});
  const TemporaryDirectory merged;
  adapter.merge(model().directory(), merged.path());
  SessionOptions options = lora_options("FULL", {&adapter}), plain = with_mode("NONE");
  options.config.dtype = plain.config.dtype = "bfloat16";
  plain.config.audit = true;
  const auto of_merged = std::make_unique<Session>(merged.path(), plain);
  of_merged->start();
  const auto session = started(options);
  load_adapter_of(*session, 1);
  run_lora(*of_merged, {{0, prompt(5, 1), 0}}, {{}, {-1}});
  const auto expected = of_merged->runner().read_logits();
  run_lora(*session, {{0, prompt(5, 1), 0}}, {{{0, 1}}, {0}});
  const auto got = session->runner().read_logits();
  ASSERT_EQ(got.size(), expected.size());
  const double most = GetParam().size() > 1 ? 0.1 : 0.05;  // through layers of roundings
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], most) << "token " << i;
}
INSTANTIATE_TEST_SUITE_P(Targets, LoraInBfloat16,
                         testing::Values(std::vector<std::string>{"lm_head"},
                                         std::vector<std::string>{"q_proj", "v_proj", "gate_proj",
                                                                  "up_proj"}));

// A place takes another adapter between two replays of the same graphs, and goes back.
TEST(Lora, APlacesNextAdapterRunsUnderTheSameGraphs) {
  const TinyAdapter one(model().shape(), {.seed = 11}),
      two(model().shape(), {.rank = 5, .seed = 12});
  for (const char* mode : {"PIECEWISE", "FULL"}) {
    const auto session = started(lora_options(mode, {&one, &two}));
    load_adapter_of(*session, 1);
    load_adapter_of(*session, 2);
    const int64_t captured = session->counters().num_graphs_captured;
    const LoraTrace first = generate_with(*session, 0, {{0, 1}});
    const LoraTrace second = generate_with(*session, 0, {{0, 2}});
    EXPECT_NE(first.tokens, second.tokens);
    const LoraTrace elsewhere = generate_with(*session, 1, {{1, 2}});
    EXPECT_EQ(elsewhere.logits, second.logits) << "an adapter's place changes no bit";
    EXPECT_EQ(generate_with(*session, 0, {{0, 1}}).logits, first.logits);
    EXPECT_EQ(session->counters().num_graphs_captured, captured) << "captured on the fly";
  }
}

// Of which one file is a pipe that nobody has opened to write yet.
TEST(Lora, StepsGoOnWhileAnAdapterIsRead) {
  const TinyAdapter one(model().shape(), {}), slow(model().shape(), {.seed = 12});
  const auto session = started(lora_options("FULL", {&one, &slow}));
  load_adapter_of(*session, 1);
  const LoraTrace before = generate_with(*session, 0, {{0, 1}});
  const std::filesystem::path config = slow.directory() / "adapter_config.json";
  const std::string digest = *adapter_digest(slow.directory());
  std::filesystem::remove(config);
  ASSERT_EQ(mkfifo(config.c_str(), 0600), 0);
  std::promise<void> read;
  ASSERT_TRUE(
      session->runner().read_adapter({2, "adapter-2", digest}, [&read] { read.set_value(); }));
  EXPECT_EQ(generate_with(*session, 0, {{0, 1}}).logits, before.logits);
  EXPECT_TRUE(session->runner().reads_adapter(2));
  EXPECT_FALSE(session->runner().reads_adapter(1)) << "it was added";
  { const std::ofstream writer(config); }  // waits for the reader, and gives it nothing
  read.get_future().wait();
  const Status added = session->runner().add_adapter(2, [] {});
  ASSERT_FALSE(added);
  EXPECT_NE(added.error().message.find("has digest"), std::string::npos) << added.error().message;
  EXPECT_FALSE(session->runner().reads_adapter(2));
}

// Two adapters and none in one batch, prompts beside decodes: each row as it is alone.
TEST(Lora, AMixedBatchIsEachOfItsRowsAlone) {
  const TinyAdapter one(model().shape(), {.seed = 21}),
      two(model().shape(), {.rank = 16, .seed = 22});
  for (const char* mode : {"NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"}) {
    const auto session = started(lora_options(mode, {&one, &two}));
    load_adapter_of(*session, 1);
    load_adapter_of(*session, 2);
    const std::vector<int32_t> places = {0, -1, 1, 0};
    std::vector<LoraTrace> alone;
    for (int row = 0; row < 4; ++row)
      alone.push_back(
          generate_with(*session, places[static_cast<size_t>(row)], {{0, 1}, {1, 2}}, row, row));
    std::vector<std::vector<TokenId>> together(4);
    std::vector<ipc::AdapterPlacement> placements = {{0, 1}, {1, 2}};
    // Row i begins a step after row i - 1.
    for (int step = 0; step < 11; ++step) {
      std::vector<Row> rows;
      LoraRows lora{placements, {}};
      for (int row = 0; row < 4; ++row) {
        const int at = step - row;
        if (at < 0 || at > 7) continue;
        const std::vector<TokenId> tokens = prompt(11, row);
        const std::vector<TokenId> fed =
            at == 0   ? std::vector<TokenId>(tokens.begin(), tokens.begin() + 7)
            : at == 1 ? std::vector<TokenId>(tokens.begin() + 7, tokens.end())
                      : std::vector<TokenId>{kTokenOnDevice};
        rows.push_back({row, fed, at == 0 ? 0 : at == 1 ? 7 : 9 + at});
        lora.places.push_back(places[static_cast<size_t>(row)]);
      }
      placements.clear();
      const auto result = run_lora(*session, rows, lora);
      const auto logits = session->runner().read_logits();
      const auto vocab = static_cast<std::ptrdiff_t>(logits.size() / rows.size());
      for (size_t r = 0; r < rows.size(); ++r) {
        const auto row = static_cast<size_t>(rows[r].slot);
        together[row].push_back(result.tokens[r]);
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
        expect_same_values({begin, begin + vocab}, alone[row].logits[together[row].size() - 1]);
      }
    }
    for (size_t row = 0; row < 4; ++row) EXPECT_EQ(together[row], alone[row].tokens) << mode;
  }
}

TEST(Lora, CG15KeysAreTwiceThereUnlessSpecialisationIsOff) {
  const TinyAdapter one(model().shape(), {});
  SessionOptions options = lora_options("FULL_AND_PIECEWISE", {&one});
  const auto count = [](const Session& session, bool lora) {
    return std::ranges::count(session.ready.manifest, lora, &ipc::ManifestEntry::has_lora);
  };
  const auto both = started(options);
  EXPECT_GT(count(*both, true), 0);
  EXPECT_EQ(count(*both, true), count(*both, false));
  std::map<std::tuple<std::string, int32_t, bool>, std::set<uint64_t>> digests;  // CG-31
  for (const ipc::ManifestEntry& entry : both->ready.manifest)
    digests[{entry.mode, entry.num_tokens, entry.uniform}].insert(entry.digest);
  for (const auto& [key, of_key] : digests) EXPECT_EQ(of_key.size(), 2u);
  load_adapter_of(*both, 1);
  const LoraTrace with = generate_with(*both, 0, {{0, 1}}), without = generate_with(*both, -1, {});

  options.config.cudagraph_specialize_lora = false;
  const auto single = started(options);
  EXPECT_EQ(count(*single, false), 0);
  EXPECT_EQ(count(*single, true), count(*both, true));
  load_adapter_of(*single, 1);
  EXPECT_EQ(generate_with(*single, 0, {{0, 1}}).logits, with.logits);
  // One key serves a batch without an adapter, which gets the base's bits from it.
  const auto result = run_lora(*single, {{3, prompt(5, 2), 0}}, {{}, {-1}});
  EXPECT_TRUE(result.key_lora);
  const auto logits = single->runner().read_logits();
  run_lora(*both, {{3, prompt(5, 2), 0}}, {{}, {-1}});
  expect_same_values(logits, both->runner().read_logits());
}

TEST(Lora, ARowWithAnAdapterInAStepWithoutOneIsRefused) {
  const TinyAdapter one(model().shape(), {});
  const auto session = started(lora_options("NONE", {&one}));
  load_adapter_of(*session, 1);
  ipc::Step step = session->make_step({{0, prompt(5, 1), 0}});
  step.setups[0].adapter = 0;
  EXPECT_THROW(session->runner().submit(step), FatalError);
  const auto other = started(lora_options("NONE", {&one}));
  ipc::Step unknown = other->make_step({{0, prompt(5, 1), 0}});
  unknown.placements = {{0, 7}};
  EXPECT_THROW(other->runner().submit(unknown), FatalError);
}

}  // namespace
}  // namespace refrain::tests
