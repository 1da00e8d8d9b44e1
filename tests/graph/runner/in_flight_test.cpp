// Two steps in flight: what is in flight is neither overwritten nor mixed up, on a device that runs
// at once and on one that is always behind (late_device.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "tests/graph/runner/late_device.h"
#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Prompts and decodes of changing slots from a seed, some steps without any row. With grammars: the
// requests of a step keep to one, or to none.
class Script {
 public:
  explicit Script(unsigned seed, std::vector<std::string> grammars = {})
      : random_(seed), grammars_(std::move(grammars)) {}

  ipc::Step next(Session& session) {
    std::vector<Row> rows;
    const int wanted = below(7);
    for (int slot = 0; slot < kSlots && static_cast<int>(rows.size()) < wanted; ++slot) {
      if (below(3) == 0) continue;
      int32_t& computed = computed_[static_cast<size_t>(slot)];
      if (computed == 0 || computed > 40 || below(8) == 0) {
        rows.push_back({slot, prompt(3 + below(6), below(1000)), 0});
        computed = static_cast<int32_t>(rows.back().tokens.size());
      } else {
        rows.push_back({slot, {kTokenOnDevice}, computed++});
      }
    }
    session.setup().temperature = below(2) == 0 ? 0.0f : 0.9f;
    session.setup().seed = random_();
    session.setup().num_logprobs = below(4) - 1;
    session.setup().repetition_penalty = below(2) == 0 ? 1.0f : 1.3f;
    if (!grammars_.empty()) {
      const auto& grammar =
          grammars_[static_cast<size_t>(below(static_cast<unsigned>(grammars_.size())))];
      session.setup().grammar.assign(grammar.begin(), grammar.end());
    }
    return session.make_step(rows);
  }

 private:
  static constexpr int kSlots = 6;
  int below(unsigned count) { return static_cast<int>(random_() % count); }

  std::mt19937 random_;
  std::vector<std::string> grammars_;
  std::array<int32_t, kSlots> computed_ = {};
};

class InFlight : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && SessionOptions{}.device != "host") {
      GTEST_SKIP() << "this device is behind by itself";
    }
  }
  SessionOptions options(const char* mode = "FULL_AND_PIECEWISE") const {
    SessionOptions options;
    options.config.cudagraph_mode = mode;
    if (GetParam()) options.wrap_device = make_late_device;
    return options;
  }
};

void expect_equal(const ipc::StepResult& got, const ipc::StepResult& expected) {
  EXPECT_EQ(got.step, expected.step);
  EXPECT_EQ(got.tokens, expected.tokens) << "step " << got.step;
  EXPECT_EQ(got.logprobs, expected.logprobs) << "step " << got.step;
  EXPECT_EQ(got.top_offsets, expected.top_offsets) << "step " << got.step;
  EXPECT_EQ(got.top_tokens, expected.top_tokens) << "step " << got.step;
  EXPECT_EQ(got.top_logprobs, expected.top_logprobs) << "step " << got.step;
}

TEST_P(InFlight, OverlappingStepsGiveWhatStepsAloneGive) {
  constexpr int kSteps = 60;
  for (const char* mode : {"NONE", "FULL", "FULL_AND_PIECEWISE"}) {
    SessionOptions alone;
    alone.config.cudagraph_mode = mode;
    const auto reference = started(alone);
    const auto session = started(options(mode));
    Script script(11), same(11);
    session->runner().submit(script.next(*session));
    for (int step = 1; step <= kSteps; ++step) {
      session->runner().submit(script.next(*session));
      reference->runner().submit(same.next(*reference));
      expect_equal(session->runner().wait(), reference->runner().wait());
    }
  }
}

// A step's masks follow from the tokens of the one before it, which may be in flight when it is
// submitted; a slot's next request has another grammar.
TEST_P(InFlight, MasksOfGrammarsFollowFromTheStepBefore) {
  const std::vector<std::string> grammars = {
      "", "regex:[a-m]{3,9}[n-z ]*",
      "json_schema:{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"};
  if (!GetParam() && SessionOptions{}.device == "host") {
    GTEST_SKIP() << "a step that runs at once waits for the one before it";
  }
  const TinyModel with_words({.vocab = 512});
  std::filesystem::copy_file("tests/fixtures/models/llama-bias-f32/tokenizer.json",
                             with_words.directory() / "tokenizer.json");
  for (const char* mode : {"NONE", "FULL", "FULL_AND_PIECEWISE"}) {
    SessionOptions alone;
    alone.config.cudagraph_mode = mode;
    const auto reference = started(alone, with_words);
    const auto session = started(options(mode), with_words);
    Script script(12, grammars), same(12, grammars);
    session->runner().submit(script.next(*session));
    for (int step = 1; step <= 60; ++step) {
      session->runner().submit(script.next(*session));
      reference->runner().submit(same.next(*reference));
      expect_equal(session->runner().wait(), reference->runner().wait());
    }
    session->runner().wait();
  }
}

// Each row may sample one token only, another in every step.
TEST_P(InFlight, ResultsAreThoseOfTheirOwnStep) {
  const auto session = started(options());
  session->setup().has_allowed_tokens = true;
  const auto submit = [&](TokenId token) {
    session->setup().allowed_tokens = {token};
    ipc::Step step = session->make_step(
        {{token % 6, prompt(4, token), 0}, {(token + 1) % 6, prompt(3, token), 0}});
    step.setups[1].allowed_tokens = {token + 100};
    session->runner().submit(step);
  };
  submit(100);
  for (TokenId token = 101; token < 130; ++token) {
    submit(token);
    EXPECT_EQ(session->runner().wait().tokens, (std::vector<TokenId>{token - 1, token + 99}));
  }
  EXPECT_EQ(session->runner().wait().tokens, (std::vector<TokenId>{129, 229}));
}

TEST_P(InFlight, RefusedStepLeavesNoTrace) {
  const auto session = started(options());
  const auto reference = started(options());
  const std::vector<Row> prompts = {{0, prompt(5, 0), 0}, {1, prompt(7, 1), 0}};
  const std::vector<Row> decode = {{0, {kTokenOnDevice}, 5}, {1, {kTokenOnDevice}, 7}};
  const ipc::Step first = session->make_step(prompts), second = session->make_step(decode);
  ipc::Step wrong = session->make_step({{2, prompt(9, 5), 0}, {3, prompt(9, 6), 0}});
  wrong.blocks[0].block.back() = 0;
  session->runner().submit(first);
  for (int i = 0; i < 3; ++i) EXPECT_THROW(session->runner().submit(wrong), FatalError);
  session->runner().submit(second);
  EXPECT_EQ(session->runner().wait().tokens, reference->run(prompts).tokens);
  EXPECT_THROW(session->runner().submit(wrong), FatalError);
  EXPECT_EQ(session->runner().wait().tokens, reference->run(decode).tokens);
  EXPECT_EQ(session->runner().in_flight(), 0);
}

TEST_P(InFlight, CG27PaddedRowsGiveNoResult) {
  SessionOptions poisoned = options("FULL");
  poisoned.poison_padding = true;
  const auto session = started(poisoned);
  const auto reference = started(options("NONE"));
  std::vector<Row> rows;
  rows.reserve(6);
  for (int slot = 0; slot < 6; ++slot) rows.push_back({slot, prompt(4, slot), 0});
  EXPECT_EQ(session->run(rows).tokens, reference->run(rows).tokens);
  const auto decode = [](int count, int32_t computed) {
    std::vector<Row> some;
    some.reserve(static_cast<size_t>(count));
    for (int slot = 0; slot < count; ++slot) some.push_back({slot, {kTokenOnDevice}, computed});
    return some;
  };
  session->runner().submit(session->make_step(decode(5, 4)));  // FULL 8
  session->runner().submit(session->make_step(decode(3, 5)));  // FULL 4
  for (const int count : {5, 3}) {
    const ipc::StepResult result = session->runner().wait();
    EXPECT_THAT(result.tokens, SizeIs(count));
    EXPECT_EQ(result.tokens, reference->run(decode(count, count == 5 ? 4 : 5)).tokens);
  }
}

// Host and device count the runs each for itself; results of another run are never taken.
TEST_P(InFlight, RunThatTheRunnerDoesNotKnowOfIsNoticed) {
  const auto session = started(options());
  session->run({{0, prompt(5, 0), 0}});
  session->run({{0, {kTokenOnDevice}, 5}});
  const auto& hosted = session->runner().hosted();
  worker::launch_ops(hosted.context, hosted.all_ops(), worker::BatchDescriptor{1, 1, true});
  hosted.context.stream->synchronize();
  session->runner().submit(session->make_step({{0, {kTokenOnDevice}, 6}}));
  try {
    session->runner().wait();
    FAIL() << "took the results of another run";
  } catch (const worker::DeviceError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("step 3"), HasSubstr("turn")));
  }
}

INSTANTIATE_TEST_SUITE_P(Device, InFlight, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Late" : "AtOnce"; });

TEST(LateDevice, RunsNothingBeforeItIsWaitedFor) {
  auto host = worker::create_host_device({});
  ASSERT_TRUE(host.has_value());
  const auto device = make_late_device(std::move(*host));
  const auto memory = device->allocate_pinned(3 * sizeof(int));
  const auto stream = device->create_stream();
  int* values = static_cast<int*>(memory->data());
  std::iota(values, values + 3, 1);
  stream->copy(values, values + 1, sizeof(int));
  const auto first = stream->record();
  stream->copy(values, values + 2, sizeof(int));
  EXPECT_FALSE(first->query());
  EXPECT_EQ(values[0], 1);
  values[1] = 20;
  first->synchronize();
  EXPECT_TRUE(first->query());
  EXPECT_EQ(values[0], 20);
  stream->synchronize();
  EXPECT_EQ(values[0], 3);
}

}  // namespace
}  // namespace refrain::tests
