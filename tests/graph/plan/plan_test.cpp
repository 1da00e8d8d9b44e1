// CG-33: `refrain plan` as JSON in, JSON out.

#include "runtime/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/json.h"

namespace refrain {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json plan(const std::string& text) {
  const auto answer = explain_plan(text);
  EXPECT_TRUE(answer.has_value()) << answer.error().message;
  return answer ? json::parse(*answer) : json();
}

constexpr const char* kSpecExample = R"({
  "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1,2,4,8,16],
  "max_cudagraph_capture_size": null, "max_num_seqs": 12, "max_num_batched_tokens": 8192,
  "num_speculative_tokens": 0, "attention_support": ["ALWAYS"], "piecewise_available": true,
  "enforce_eager": false, "disable_padding": false, "max_padding_ratio": null, "lora": false,
  "batches": [{"query_lens": [1,1,1]}, {"query_lens": [1,1,7], "context_lens": [9,4,0]},
              {"query_lens": [1,1], "cascade": true}, {"query_lens": []},
              {"query_lens": [1,1], "context_lens": [3,0]},
              {"query_lens": [1,1], "allowed_modes": ["NONE"]},
              {"query_lens": [17]}]})";

TEST(Plan, CG33SpecExample) {
  const json expected = json::parse(R"({
    "cudagraph_mode": "FULL_AND_PIECEWISE", "warnings": [], "capture_sizes": [1,2,4,8,12,16],
    "uniform_query_len": 1,
    "keys": {"FULL": [{"num_tokens": 12, "num_reqs": 12, "uniform": true},
                      {"num_tokens": 8, "num_reqs": 8, "uniform": true},
                      {"num_tokens": 4, "num_reqs": 4, "uniform": true},
                      {"num_tokens": 2, "num_reqs": 2, "uniform": true},
                      {"num_tokens": 1, "num_reqs": 1, "uniform": true}],
             "PIECEWISE": [{"num_tokens": 16}, {"num_tokens": 12}, {"num_tokens": 8},
                           {"num_tokens": 4}, {"num_tokens": 2}, {"num_tokens": 1}]},
    "dispatch": [
      {"mode": "FULL", "num_tokens": 4, "num_reqs": 4, "uniform": true, "paddings": 1},
      {"mode": "PIECEWISE", "num_tokens": 12, "num_reqs": 3, "uniform": false, "paddings": 3},
      {"mode": "PIECEWISE", "num_tokens": 2, "num_reqs": 2, "uniform": false, "paddings": 0},
      {"mode": "NONE", "num_tokens": 0, "num_reqs": 0, "uniform": false, "paddings": 0},
      {"mode": "PIECEWISE", "num_tokens": 2, "num_reqs": 2, "uniform": false, "paddings": 0},
      {"mode": "NONE", "num_tokens": 2, "num_reqs": 2, "uniform": false, "paddings": 0},
      {"mode": "NONE", "num_tokens": 17, "num_reqs": 1, "uniform": false, "paddings": 0}]})");
  EXPECT_EQ(plan(kSpecExample), expected);
}

TEST(Plan, CG33FieldsAreOptionalWithServingDefaults) {
  const json answer = plan(R"({"batches": []})");
  EXPECT_EQ(answer["cudagraph_mode"], "FULL_AND_PIECEWISE");
  EXPECT_EQ(answer["capture_sizes"].back(), 512);
  EXPECT_EQ(answer["keys"]["FULL"][0],
            json::parse(R"({"num_tokens": 256, "num_reqs": 256, "uniform": true})"));
  EXPECT_EQ(answer["dispatch"], json::array());
}

TEST(Plan, CG33ShowsDowngrades) {
  const json answer = plan(
      R"({"cudagraph_mode": "FULL", "attention_support": ["ALWAYS", "NEVER"], "batches": []})");
  EXPECT_EQ(answer["cudagraph_mode"], "PIECEWISE");
  ASSERT_EQ(answer["warnings"].size(), 1u);
  EXPECT_THAT(answer["warnings"][0].get<std::string>(), HasSubstr("attention_support[1]"));
}

TEST(Plan, CG33EnforceEagerHasNoKeys) {
  const json answer = plan(R"({"enforce_eager": true, "batches": [{"query_lens": [1]}]})");
  EXPECT_EQ(answer["cudagraph_mode"], "NONE");
  EXPECT_EQ(answer["capture_sizes"], json::array());
  EXPECT_EQ(answer["keys"], json::parse(R"({"FULL": [], "PIECEWISE": []})"));
  EXPECT_EQ(answer["dispatch"][0]["mode"], "NONE");
}

TEST(Plan, CG35KeysShowWhichHiddenStatesTheyLeave) {
  const json answer = plan(
      R"({"cudagraph_capture_sizes": [4], "max_num_seqs": 4, "capture_hidden_mode": "FULL",
          "batches": [{"query_lens": [1], "capture_hidden_mode": "FULL"}, {"query_lens": [9]}]})");
  EXPECT_EQ(answer["keys"]["FULL"][0],
            json::parse(R"({"num_tokens": 4, "num_reqs": 4, "uniform": true,
                            "capture_hidden_mode": "FULL"})"));
  EXPECT_EQ(answer["keys"]["PIECEWISE"][0],
            json::parse(R"({"num_tokens": 4, "capture_hidden_mode": "FULL"})"));
  for (const json& batch : answer["dispatch"]) EXPECT_EQ(batch["capture_hidden_mode"], "FULL");
}

struct BadPlan {
  const char* text;
  const char* field;
};
class BadPlanTest : public ::testing::TestWithParam<BadPlan> {};

TEST_P(BadPlanTest, CG33BadFieldIsNamed) {
  const auto answer = explain_plan(GetParam().text);
  ASSERT_FALSE(answer.has_value()) << *answer;
  EXPECT_EQ(answer.error().field, GetParam().field);
  const json error = json::parse(plan_error(answer.error()));
  EXPECT_EQ(error["error"]["field"], GetParam().field);
  EXPECT_FALSE(error["error"]["message"].get<std::string>().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadPlanTest,
    ::testing::Values(
        BadPlan{"{", ""}, BadPlan{"[]", ""}, BadPlan{"{}", "batches"},
        BadPlan{R"({"batches": {}})", "batches"}, BadPlan{R"({"batches": [3]})", "batches[0]"},
        BadPlan{R"({"batches": [{}]})", "batches[0].query_lens"},
        BadPlan{R"({"batches": [{"query_lens": [0]}]})", "batches[0].query_lens"},
        BadPlan{R"({"batches": [{"query_lens": [1.5]}]})", "batches[0].query_lens"},
        BadPlan{R"({"batches": [{"query_lens": [2147483647, 1]}]})", "batches[0].query_lens"},
        BadPlan{R"({"batches": [{"query_lens": [1], "context_lens": []}]})",
                "batches[0].context_lens"},
        BadPlan{R"({"batches": [{"query_lens": [1], "context_lens": [-1]}]})",
                "batches[0].context_lens"},
        BadPlan{R"({"batches": [{"query_lens": [1], "cascade": 1}]})", "batches[0].cascade"},
        BadPlan{R"({"batches": [{"query_lens": [1], "allowed_modes": ["SOME"]}]})",
                "batches[0].allowed_modes"},
        BadPlan{R"({"batches": [], "sizes": []})", "sizes"},
        BadPlan{R"({"batches": [], "capture_hidden_mode": "ALL"})", "capture_hidden_mode"},
        BadPlan{R"({"capture_hidden_mode": "LAST", "batches": [{"query_lens": [1]},
                    {"query_lens": [1], "capture_hidden_mode": "FULL"}]})",
                "batches[1].capture_hidden_mode"},
        BadPlan{R"({"batches": [], "cudagraph_mode": "full"})", "cudagraph_mode"},
        BadPlan{R"({"batches": [], "cudagraph_mode": 3})", "cudagraph_mode"},
        BadPlan{R"({"batches": [], "cudagraph_capture_sizes": []})", "cudagraph_capture_sizes"},
        BadPlan{R"({"batches": [], "cudagraph_capture_sizes": [0]})", "cudagraph_capture_sizes"},
        BadPlan{R"({"batches": [], "cudagraph_capture_sizes": [99999999999]})",
                "cudagraph_capture_sizes"},
        BadPlan{R"({"batches": [], "cudagraph_capture_sizes": [4],
                    "max_cudagraph_capture_size": 8})",
                "max_cudagraph_capture_size"},
        BadPlan{R"({"batches": [], "attention_support": ["NO"]})", "attention_support"},
        BadPlan{R"({"batches": [], "max_num_seqs": 0})", "max_num_seqs"},
        BadPlan{R"({"batches": [], "max_num_seqs": "4"})", "max_num_seqs"},
        BadPlan{R"({"batches": [], "max_padding_ratio": 0.5})", "max_padding_ratio"},
        BadPlan{R"({"batches": [], "enforce_eager": "yes"})", "enforce_eager"}));

}  // namespace
}  // namespace refrain
