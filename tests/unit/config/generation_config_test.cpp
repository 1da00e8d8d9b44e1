// Sampling defaults: generation_config.json, another one, none, and what overrides them.
#include "runtime/config/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/temporary_directory.h"

namespace refrain {
namespace {

using testing::HasSubstr;

class GenerationConfig : public testing::Test {
 protected:
  GenerationConfig() {
    model_.write(
        "generation_config.json",
        R"({"eos_token_id": 2, "do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20,
                     "min_p": 0.1, "repetition_penalty": 1.05, "max_new_tokens": 512})");
  }
  Result<GenerationDefaults> load(const std::string& source,
                                  const std::string& overrides = {}) const {
    return load_generation_defaults(model_.path(), source, overrides);
  }
  tests::TemporaryDirectory model_;
};

TEST_F(GenerationConfig, TheModelsOwnIsTheDefault) {
  const auto defaults = load("auto");
  ASSERT_TRUE(defaults) << defaults.error().message;
  EXPECT_EQ(*defaults, (GenerationDefaults{0.6, 0.95, 0.1, 1.05, 20, 512}));
  EXPECT_EQ(defaults->describe(),
            "temperature 0.6, top_p 0.95, top_k 20, min_p 0.1, repetition_penalty 1.05, "
            "max_new_tokens 512");
}

TEST_F(GenerationConfig, AModelWithoutOneHasTheApisDefaults) {
  const tests::TemporaryDirectory plain;
  EXPECT_EQ(load_generation_defaults(plain.path(), "auto", {}).value(), GenerationDefaults());
  EXPECT_EQ(load("vllm").value(), GenerationDefaults());
  EXPECT_EQ(load("vllm")->describe(), "");
}

TEST_F(GenerationConfig, AnotherDirectorysAndOverridesWin) {
  const tests::TemporaryDirectory other;
  other.write("generation_config.json", R"({"temperature": 0.1, "top_k": null})");
  EXPECT_EQ(load(other.path()).value(), (GenerationDefaults{0.1, {}, {}, {}, {}, {}}));
  EXPECT_EQ(load("auto", R"({"temperature": 0, "max_new_tokens": 9})").value(),
            (GenerationDefaults{0.0, 0.95, 0.1, 1.05, 20, 9}));
  EXPECT_EQ(load("vllm", R"({"top_p": 0.5})").value(),
            (GenerationDefaults{{}, 0.5, {}, {}, {}, {}}));
}

TEST_F(GenerationConfig, R14_MistakesNameTheFileOrTheOption) {
  EXPECT_EQ(load("nowhere").error().field, "--generation-config");
  EXPECT_THAT(load("nowhere").error().message, HasSubstr("auto, vllm or a directory"));
  EXPECT_THAT(load("auto", "{").error().message, HasSubstr("--override-generation-config"));
  EXPECT_THAT(load("auto", R"({"top_p": 2})").error().message,
              HasSubstr("--override-generation-config"));
  for (const char* wrong :
       {R"({"temperature": "hot"})", R"({"temperature": 3})", R"({"top_p": 0})",
        R"({"top_k": 1.5})", R"({"max_new_tokens": 0})", R"({"min_p": -1})", "[]"}) {
    model_.write("generation_config.json", wrong);
    ASSERT_FALSE(load("auto")) << wrong;
    EXPECT_THAT(load("auto").error().message, HasSubstr("generation_config.json")) << wrong;
    EXPECT_TRUE(load("vllm")) << wrong;
  }
}

}  // namespace
}  // namespace refrain
