// --speculative-config: what it takes, what it refuses by its key, and what it makes of a rate.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/config/command_line.h"

namespace refrain {
namespace {

using ::testing::HasSubstr;

TEST(SpeculativeConfig, WhatCannotBeIsRefusedByItsKey) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"[]", "JSON object"},
      {R"({"num_speculative_tokens": 4})", "method is missing"},
      {R"({"method": "medusa", "num_speculative_tokens": 4})", "method \"medusa\" is not there"},
      {R"({"method": "eagle3", "num_speculative_tokens": 4})", "model is missing"},
      {R"({"method": "ngram"})", "num_speculative_tokens is missing"},
      {R"({"method": "ngram", "num_speculative_tokens": 33})", "from 1 to 32"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "model": "m"})",
       "are for methods \"draft_model\""},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "modell": "m"})",
       "unknown key 'modell'"},
      {R"({"method": "draft_model", "num_speculative_tokens": 2})", "model is missing"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "block"})",
       "\"block\" is not there"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"})",
       "need each other"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "synthetic_acceptance_rate": 0.5})",
       "need each other"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
           "synthetic_acceptance_rate": 1.5})",
       "from 0 to 1"},
      {R"({"method": "draft_model", "num_speculative_tokens": 2, "model": "m",
           "prompt_lookup_min": 1})",
       "are for method \"ngram\""},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 3,
           "prompt_lookup_max": 2})",
       "more than prompt_lookup_max"}};
  for (const auto& [json, what] : bad)
    EXPECT_THAT(parse_words({"--speculative-config", json}).error(), HasSubstr(what)) << json;
}

TEST(SpeculativeConfig, TheChanceOfADraftGivesTheShareInTheMean) {
  const auto chance = [](const char* rate, const char* drafts) {
    const auto parsed = parse_words(
        {"--speculative-config",
         fmt::format(R"({{"method": "ngram", "num_speculative_tokens": {}, )"
                     R"("rejection_sample_method": "synthetic", "synthetic_acceptance_rate": {}}})",
                     drafts, rate)});
    return std::ldexp(static_cast<double>(parsed.config.worker.synthetic_acceptance), -32);
  };
  EXPECT_NEAR(chance("0.5", "1"), 0.5, 1e-6);
  EXPECT_NEAR(chance("0", "3"), 0, 1e-6);
  EXPECT_NEAR(chance("1", "3"), 1, 1e-6);
  const double each = chance("0.6", "3");
  EXPECT_NEAR((each + each * each + each * each * each) / 3, 0.6, 1e-6);
}

TEST(SpeculativeConfig, WhatIsGivenComesToTheWorkers) {
  const auto both = parse_words({"--speculative-config",
                                 R"({"method": "ngram", "num_speculative_tokens": 2,
                                     "prompt_lookup_max": 4})"});
  EXPECT_EQ(both.config.worker.prompt_lookup_min, 4) << "one end given is both, as in vLLM";
  EXPECT_EQ(both.config.worker.synthetic_acceptance, -1);
  for (const char* option : {"--speculative-algorithm", "--speculative-num-steps",
                             "--speculative-num-draft-tokens", "--speculative-draft-model-path"})
    EXPECT_THAT(parse_words({option, "STANDALONE"}).error(),
                ::testing::AllOf(HasSubstr("--speculative-config"), HasSubstr("draft_model")))
        << option;
  const auto draft = parse_words({"--speculative-config",
                                  R"({"method": "draft_model", "num_speculative_tokens": 2,
                                      "model": "/a/model", "draft_tensor_parallel_size": 2})"});
  EXPECT_TRUE(draft.config.worker.draft_model);
  EXPECT_EQ(draft.config.draft_model, "/a/model");
  EXPECT_EQ(draft.config.draft_tensor_parallel_size, 2);
  EXPECT_EQ(draft.config.worker.draft_tensor_parallel_size, 0) << "shared by the model's ranks";
  const auto alone = parse_words({"--speculative-config",
                                  R"({"method": "draft_model", "num_speculative_tokens": 2,
                                      "model": "/a/model", "draft_tensor_parallel_size": 1})"});
  EXPECT_EQ(alone.config.worker.draft_tensor_parallel_size, 1);
  EXPECT_EQ(draft.config.worker.draft_head, ipc::DraftHead::kNone);
  const auto head = parse_words({"--speculative-config",
                                 R"({"method": "eagle3", "num_speculative_tokens": 2,
                                     "model": "/a/head"})"});
  EXPECT_TRUE(head.config.worker.draft_model);
  EXPECT_EQ(head.config.worker.draft_head, ipc::DraftHead::kEagle3);
  EXPECT_EQ(head.config.draft_model, "/a/head");
}

}  // namespace
}  // namespace refrain
