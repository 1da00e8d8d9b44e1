// CG-13: requests behind one prompt, of which a step reads the shared blocks once: their tokens are
// those of a server without cascade attention, in every mode, alone and beside drafts and audits.
#include <gtest/gtest.h>

#include "tests/graph/states/hybrid_model.h"
#include "tests/graph/states/requests.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

constexpr int kPrefix = 45, kBehind = 4;

// The first one's prefix is there when the others come.
Answers serve_behind(Served& served) {
  const auto behind = [](int request) {
    std::vector<TokenId> tokens = prompt(kPrefix, 1);
    for (int i = 0; i < 2 + request; ++i) tokens.push_back(200 + request);
    return tokens;
  };
  served.add(1, behind(1), 4);
  served.run();
  for (int request = 2; request <= 1 + kBehind; ++request)
    served.add(static_cast<RequestId>(request), behind(request), 24);
  served.run(6);
  served.add(2 + kBehind, prompt(70, 90), 6);  // beside their decodes
  served.run();
  Answers answers;
  for (const auto& [id, outcome] : served.outcomes) answers.push_back(outcome.tokens);
  return answers;
}

ServedOptions options_of(const std::string& mode) {
  ServedOptions options;
  options.config.cudagraph_mode = mode;
  options.cascade_keys = 1;
  return options;
}

class Cascade : public ::testing::TestWithParam<std::string> {};

TEST_P(Cascade, CG13TokensAreThoseWithoutAndFullGraphsDoNotRun) {
  const TinyModel model;
  ServedOptions options = options_of(GetParam());
  options.config.audit = true;
  options.audit_rate = 0.3;
  options.poison = true;
  Served cascade(model.directory(), options);
  const Answers answers = serve_behind(cascade);
  EXPECT_GT(cascade.scheduler->stats().cascade_steps, 10u);
  EXPECT_GT(cascade.audited, 5);
  const bool pieces = GetParam() == "PIECEWISE" || GetParam() == "FULL_AND_PIECEWISE";
  EXPECT_GT(cascade.modes[pieces ? "PIECEWISE" : "NONE"], 10);
  ServedOptions without = options_of(GetParam());
  without.config.disable_cascade_attn = true;
  Served plain(model.directory(), without);
  EXPECT_EQ(serve_behind(plain), answers);
  EXPECT_EQ(plain.scheduler->stats().cascade_steps, 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, Cascade,
                         ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY",
                                           "FULL_AND_PIECEWISE"),
                         [](const auto& info) { return info.param; });

TEST(CascadeServed, DraftsAndRanksAndBackendsThatPlanGiveTheSameTokens) {
  const TinyModel model;
  const Answers expected = [&] {
    ServedOptions options = options_of("NONE");
    options.config.disable_cascade_attn = true;
    Served plain(model.directory(), options);
    return serve_behind(plain);
  }();
  const bool host = ServedOptions().device == "host";
  struct Case {
    int32_t drafts, ranks;
    const char* backend;
  };
  for (const auto& [drafts, ranks, backend] :
       {Case{2, 1, "auto"}, Case{0, 2, "auto"}, Case{0, 1, host ? "host_varlen" : "cuda_decode"}}) {
    if (ranks > 1 && !host) continue;  // a process a GPU
    SCOPED_TRACE(testing::Message() << drafts << " drafts, " << ranks << " ranks, " << backend);
    ServedOptions options = options_of("FULL_AND_PIECEWISE");
    options.config.num_speculative_tokens = drafts;
    options.config.prompt_lookup_max = 3;
    options.config.tensor_parallel_size = ranks;
    options.config.attention_backend = backend;
    Served cascade(model.directory(), options);
    EXPECT_EQ(serve_behind(cascade), expected);
    EXPECT_GT(cascade.scheduler->stats().cascade_steps, 5u);
  }
}

// Layers of full attention read the prefix once, those within a window and recurrent ones as ever.
TEST(CascadeServed, OfAModelWithSeveralStateGroups) {
  const HybridModel model;
  Answers answers[2];
  for (const bool disabled : {true, false}) {
    ServedOptions options = options_of("FULL_AND_PIECEWISE");
    options.build = model.build();
    options.config.disable_cascade_attn = disabled;
    Served served(model.directory(), options);
    answers[disabled ? 0 : 1] = serve_behind(served);
    EXPECT_EQ(served.scheduler->stats().cascade_steps > 0, !disabled);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace refrain::tests
