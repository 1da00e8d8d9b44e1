#include "runtime/config/group_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/config/command_line.h"

namespace refrain {
namespace {

using testing::HasSubstr;

TEST(GroupOptions, RolesOfOneInstanceAreRefusedWithWhatToGiveInstead) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--disaggregation-mode", "prefill"},
           {"--kv-transfer-config", R"({"kv_role": "kv_consumer"})"}})
    EXPECT_THAT(parse_words(words).error(), HasSubstr("--prefill-groups N --decode-groups M"));
  EXPECT_THAT(parse_words({"--kv-transfer-config", R"({"kv_role": "kv"})"}).error(),
              HasSubstr("none of \"kv_producer\""));
  EXPECT_THAT(parse_words({"--kv-transfer-config", "[]"}).error(), HasSubstr("kv_role"));
  EXPECT_THAT(parse_words({"--disaggregation-mode", "both-ways"}).error(), HasSubstr("no role"));
}

TEST(GroupOptions, TheNamesOfOtherServersAreRoles) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--disaggregation-mode", "null"},
           {"--kv-transfer-config",
            R"({"kv_connector": "NixlConnector", "kv_role": "kv_both"})"}}) {
    const Parsed parsed = parse_words(words);
    EXPECT_EQ(parsed.error(), "");
    EXPECT_FALSE(parsed.config.has_roles());
  }
  EXPECT_EQ(*role_of_kv_transfer_config(R"({"kv_role": "kv_producer"})"), ipc::GroupRole::kPrefill);
  EXPECT_EQ(*role_of_kv_transfer_config(R"({"kv_role": "kv_consumer"})"), ipc::GroupRole::kDecode);
  EXPECT_EQ(*parse_role("null"), ipc::GroupRole::kBoth);
}

TEST(GroupOptions, KnowWhetherAGraphModeWasGiven_CG2) {
  const auto given = [](const std::vector<std::string>& words) {
    return parse_words(words).config.cudagraph_mode_given;
  };
  EXPECT_FALSE(given({}));
  EXPECT_FALSE(given({"-O", R"({"cudagraph_capture_sizes": [1]})"}));
  EXPECT_TRUE(given({"--cudagraph-mode", "FULL_AND_PIECEWISE"}));
  EXPECT_TRUE(given({"--enable-piecewise-cuda-graph"}));
  EXPECT_TRUE(given({"-O", R"({"cudagraph_mode": "NONE"})"}));
  EXPECT_EQ(parse_words({"-O", R"({"cudagraph_capture_sizes": [1]})"}).config.worker.cudagraph_mode,
            "FULL_AND_PIECEWISE");
}

}  // namespace
}  // namespace refrain
