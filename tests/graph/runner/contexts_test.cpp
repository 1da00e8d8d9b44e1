// CG-38: two execution contexts run two batches of one Program at the same time, on shares of the
// device: each gives the bits of a runner that has the device for itself. Where the streams run one
// launch each in turn, whatever the contexts must not share is found by planting it.

#include <gtest/gtest.h>

#include "tests/graph/runner/late_device.h"
#include "tests/graph/runner/session.h"

namespace refrain::tests::contexts {
namespace {

constexpr int kSteps = 5;

enum class On { kShares, kInTurns };  // real threads, or one launch each in turn

SessionOptions options_of(const std::string& mode, On on, int contexts) {
  SessionOptions options = with_mode(mode);
  options.contexts = contexts;
  options.threads = 2;
  if (on == On::kInTurns) {
    options.threads = 1;
    options.wrap_device = make_late_device;
  }
  return options;
}

// Batch `of` of two: prompts of slots 0 to 2, or 3 and 4, then their decodes. The first has more
// rows and tokens, and so live counts that the other's would cut short.
std::vector<Row> rows(int of, int step) {
  std::vector<Row> rows;
  for (SlotId slot = 3 * of; slot < 3 + 2 * of; ++slot) {
    const int length = 14 - 3 * slot;
    if (step == 0) {
      rows.push_back({slot, prompt(length, slot), 0});
    } else {
      rows.push_back({slot, {kTokenOnDevice}, length + step - 1});
    }
  }
  return rows;
}

struct Trace {
  std::vector<std::vector<TokenId>> tokens;  // by step
  std::vector<float> logits;                 // of the last step
  int graphs = 0;                            // steps that ran one
  bool operator==(const Trace&) const = default;
};

void take(Trace& trace, const ipc::StepResult& result) {
  trace.tokens.push_back(result.tokens);
  trace.graphs += result.mode != ipc::RuntimeMode::kNone ? 1 : 0;
}

// Both batches in contexts of their own, two steps of each in flight.
std::vector<Trace> play(const SessionOptions& options) {
  const auto session = started(options);
  std::vector<Trace> traces(2);
  for (int step = 0; step < kSteps + 1; ++step) {
    for (int of = 0; of < 2 && step < kSteps; ++of)
      session->runner().runner(of).submit(session->make_step(rows(of, step)));
    for (int of = 0; of < 2 && step > 0; ++of)
      take(traces[of], session->runner().runner(of).wait());
  }
  for (int of = 0; of < 2; ++of) traces[of].logits = session->runner().runner(of).read_logits();
  return traces;
}

// One after the other in one context.
std::vector<Trace> reference(const std::string& mode) {
  std::vector<Trace> traces(2);
  for (int of = 0; of < 2; ++of) {
    const auto session = started(with_mode(mode));
    for (int step = 0; step < kSteps; ++step) take(traces[of], session->run(rows(of, step)));
    traces[of].logits = session->runner().read_logits();
  }
  return traces;
}

void expect_same(const std::vector<Trace>& got, const std::vector<Trace>& expected) {
  for (size_t of = 0; of < 2; ++of) {
    EXPECT_EQ(got[of].tokens, expected[of].tokens) << "batch " << of;
    EXPECT_EQ(got[of].graphs, expected[of].graphs) << "batch " << of;
    expect_same_values(got[of].logits, expected[of].logits);
  }
}

class ContextsMode : public ::testing::TestWithParam<const char*> {};

TEST_P(ContextsMode, CG38TwoBatchesAtOnceGiveTheBitsOfEachAlone) {
  expect_same(play(options_of(GetParam(), On::kShares, 2)), reference(GetParam()));
}

TEST_P(ContextsMode, CG38LaunchesOfTwoContextsMayComeInTurns) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a GPU orders its streams itself";
  expect_same(play(options_of(GetParam(), On::kInTurns, 2)), reference(GetParam()));
}

// What differs, or what the worker says.
std::string found_with(const std::string& mode,
                       const std::function<bool(const worker::Value&)>& shared) {
  SessionOptions options = options_of(mode, On::kInTurns, 2);
  options.before_capture = [&](worker::ProgramRunner& runner) {
    const auto lowerings = runner.context(0).model().lowerings();
    for (size_t i = 0; i < lowerings.size(); ++i) {
      worker::Lowering& second = *runner.context(1).model().lowerings()[i];
      for (size_t v = 0; v < second.program.values.size(); ++v)
        if (shared(second.program.values[v]))
          second.context.addresses[v] = lowerings[i]->context.addresses[v];
    }
  };
  try {
    const std::vector<Trace> got = play(options), expected = reference(mode);
    return got[0] == expected[0] && got[1] == expected[1] ? "" : "other tokens or logits";
  } catch (const worker::DeviceError& error) {
    return error.what();
  }
}

TEST_P(ContextsMode, CG38SharedArenasAndCountersAreFound) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a GPU orders its streams itself";
  EXPECT_EQ(found_with(GetParam(), [](const worker::Value&) { return false; }), "");
  EXPECT_EQ(found_with(GetParam(), [](const worker::Value& value) { return value.is_of_slots(); }),
            "")
      << "slots are shared, each context has its own rows of them";
  EXPECT_NE(found_with(GetParam(),
                       [](const worker::Value& value) {
                         return value.storage == worker::Storage::kArena;
                       }),
            "")
      << "one arena";
  EXPECT_NE(found_with(GetParam(), [](const worker::Value& value) { return value.of_context; }), "")
      << "one count of turns";
  for (const char* input : {"live_tokens", "live_reqs", "row_slot", "positions"}) {
    EXPECT_NE(found_with(GetParam(), [&](const worker::Value& v) { return v.name == input; }), "")
        << input;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ContextsMode,
                         ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY",
                                           "FULL_AND_PIECEWISE"));

// An executable belongs to one context: its graphs were captured over that one's addresses.
TEST(Contexts, CG38EachHasKeysGraphsAndArenaOfItsOwn) {
  const auto session = started(options_of("FULL_AND_PIECEWISE", On::kShares, 2));
  const auto one = started(options_of("FULL_AND_PIECEWISE", On::kShares, 1));
  worker::ProgramRunner& runner = session->runner();
  EXPECT_EQ(session->ready.manifest.size(), 2 * one->ready.manifest.size());
  EXPECT_NE(runner.context(0).pool->arena(), runner.context(1).pool->arena());
  EXPECT_EQ(runner.context(0).pool->counters().num_graphs_captured,
            runner.context(1).pool->counters().num_graphs_captured);
  EXPECT_EQ(runner.context(0).model().weights, runner.context(1).model().weights);
  EXPECT_EQ(runner.context(0).model().cache, runner.context(1).model().cache);
  EXPECT_GT(session->ready.arena_bytes, one->ready.arena_bytes);
}

}  // namespace
}  // namespace refrain::tests::contexts
