// CG-39: a prompt's run in parts, with steps of other rows between them, gives the bits of one run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"

namespace refrain::tests::split_prefill {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int32_t kParts = 3;  // of 3 * kLayers + 1 pieces

SessionOptions options_of(const std::string& mode, int32_t parts = kParts) {
  SessionOptions options = with_mode(mode);
  options.config.split_prefill = parts;
  options.poison_padding = true;  // between parts nothing in the arena stays as it was
  return options;
}

// The step of `whole` that runs its part `part`: setups and blocks come with the first.
ipc::Step part_of(const ipc::Step& whole, int32_t part, StepId id, int32_t parts = kParts) {
  ipc::Step step = whole;
  step.step = id;
  step.runs.front().part = part;
  step.runs.front().parts = parts;
  if (part > 0) {
    step.setups.clear();
    for (ipc::BlockUpdates& group : step.blocks) group = {};
  }
  if (!step.runs.front().ends())
    for (uint8_t& flags : step.runs.front().rows.flags) flags = 0;
  return step;
}

struct Trace {
  std::vector<std::vector<TokenId>> decoded;  // of the rows between, by step
  std::vector<TokenId> tokens;                // of the prompts
  std::vector<float> logits;                  // of their last step
};

// Two requests decode; two prompts, of which one has begun, come in between, in parts or not.
Trace play(const std::string& mode, int32_t parts, int prompt_tokens, bool two_in_flight) {
  const auto session = started(options_of(mode, parts));
  worker::ProgramRunner& runner = session->runner();
  session->run({{0, prompt(7, 0), 0}, {1, prompt(4, 1), 0}});
  session->run({{2, prompt(5, 2), 0}});
  Trace trace;
  int32_t at = 0;
  const auto decode_step = [&] {
    const ipc::Step step =
        session->make_step({{0, {kTokenOnDevice}, 7 + at}, {1, {kTokenOnDevice}, 4 + at}});
    ++at;
    return step;
  };
  const ipc::Step whole =
      session->make_step({{2, prompt(prompt_tokens, 3), 5}, {3, prompt(6, 4), 0}});
  StepId id = 1000;
  for (int32_t part = 0; part < parts; ++part) {
    runner.submit(part_of(whole, part, ++id, parts));
    const bool last = part + 1 == parts;
    if (two_in_flight && !last) runner.submit(decode_step());
    const ipc::StepResult result = runner.wait();
    if (last) {
      trace.tokens = result.tokens;
      trace.logits = runner.read_logits();
    } else {
      EXPECT_EQ(result.token_offsets, (std::vector<int32_t>{0, 0, 0})) << "part " << part;
      if (!two_in_flight) runner.submit(decode_step());
      trace.decoded.push_back(runner.wait().tokens);
    }
  }
  while (trace.decoded.size() < 4) {
    runner.submit(decode_step());
    trace.decoded.push_back(runner.wait().tokens);
  }
  // Their keys and values are those of one run too.
  trace.decoded.push_back(
      session->run({{2, {kTokenOnDevice}, 5 + prompt_tokens}, {3, {kTokenOnDevice}, 6}}).tokens);
  return trace;
}

class SplitPrefillMode : public ::testing::TestWithParam<const char*> {};

// 3 and 6 tokens are within a captured size, 40 beyond all.
TEST_P(SplitPrefillMode, CG39PartsBetweenDecodesGiveTheBitsOfOneRun) {
  for (const int tokens : {3, 40}) {
    const Trace whole = play(GetParam(), 1, tokens, false);
    for (const int32_t parts : {2, kParts, 5}) {
      for (const bool two_in_flight : {false, true}) {
        const Trace cut = play(GetParam(), parts, tokens, two_in_flight);
        EXPECT_EQ(cut.tokens, whole.tokens) << parts << " parts of " << tokens;
        EXPECT_EQ(cut.logits, whole.logits) << parts << " parts of " << tokens;
        EXPECT_EQ(cut.decoded, whole.decoded) << parts << " parts of " << tokens;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SplitPrefillMode,
                         ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY",
                                           "FULL_AND_PIECEWISE"));

// Whoever sends such a step has lost count: the worker ends.
TEST(SplitPrefill, CG39ARunThatGoesOnAtAnotherPartOrWithOtherRowsIsNotRun) {
  const auto said = [](bool begun, const std::function<void(ipc::Run&)>& change) {
    const auto session = started(options_of("PIECEWISE"));
    const ipc::Step whole = session->make_step({{2, prompt(9, 3), 0}});
    if (begun) {
      session->runner().submit(part_of(whole, 0, 1));
      session->runner().wait();
    }
    ipc::Step wrong = part_of(whole, 1, 2);
    change(wrong.runs.front());
    try {
      session->runner().submit(wrong);
    } catch (const FatalError& error) {
      return std::string(error.what());
    }
    return std::string("it runs");
  };
  EXPECT_EQ(said(true, [](ipc::Run&) {}), "it runs");
  EXPECT_THAT(said(false, [](ipc::Run&) {}), HasSubstr("has part 1 of a run, part 0 is next"));
  EXPECT_THAT(said(true, [](ipc::Run& run) { run.part = 2; }),
              HasSubstr("has part 2 of a run, part 1 is next"));
  EXPECT_THAT(said(true, [](ipc::Run& run) { run.rows.token_ids[0] += 1; }),
              HasSubstr("goes on with a run of other rows"));
  EXPECT_THAT(said(true, [](ipc::Run& run) { run.parts = 4; }), HasSubstr("part 1 of 4 of a run"));
  EXPECT_THAT(said(true, [](ipc::Run& run) { run.rows.flags[0] = ipc::kSamples; }),
              HasSubstr("flags 1 in part 1 of 3"));
}

TEST(SplitPrefill, CG39MorePartsThanPiecesEndTheStart) {
  const auto start = [] { started(options_of("NONE", 3 * kLayers + 2)); };
  EXPECT_THAT(start, ThrowsMessage<FatalError>(
                         HasSubstr("--split-prefill: 8 parts of a program that is cut into 7")));
}

}  // namespace
}  // namespace refrain::tests::split_prefill
