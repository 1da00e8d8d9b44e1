#include "runtime/server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/server/vllm_metrics.h"

namespace refrain {
namespace {

TEST(Metrics, StepsWithoutAGraphAreOneSeriesHoweverManyTokensTheyHave) {
  EngineStats stats;
  for (int32_t tokens = 1; tokens <= 1000; ++tokens) {
    GraphUse use;
    use.mode = "NONE";
    use.padded_tokens = tokens;
    use.count = 2;
    stats.graph_uses.push_back(use);
  }
  const std::string text = Metrics("m").render(stats, {});
  const std::string name = "refrain:cudagraph_dispatch_total{";
  const size_t first = text.find(name);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(name, first + 1), std::string::npos) << "a second series";
  const std::string line = text.substr(first, text.find('\n', first) - first);
  EXPECT_TRUE(line.ends_with(" 2000")) << line;
}

TEST(Metrics, WhatVllmHasTooIsToldUnderItsNames) {
  using testing::HasSubstr;
  EngineStats stats;
  stats.requests_running = 3;
  stats.prompt_tokens = 70;
  stats.blocks_total = 70;
  stats.graph_uses = {{"FULL", 7, 8, 4, false}, {"NONE", 100, 100, 1, false}};
  Metrics metrics("m", {{"block_size", "16"}});
  const TimePoint begun{};
  const auto after = [&](int milliseconds) {
    return begun + std::chrono::milliseconds(milliseconds);
  };
  metrics.observe_request({begun, after(100), after(20), after(50), after(90), 5}, 5, 10);
  const std::string text = under_vllm_names(metrics.render(stats, {}));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:num_requests_running "
                              "gauge\nvllm:num_requests_running{model_name=\"m\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_queries_total{model_name=\"m\"} 70\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_prompt_tokens_bucket{model_name=\"m\",le=\"16\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_queue_time_seconds_sum{model_name=\"m\"} 0.02\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_prefill_time_seconds_sum{model_name=\"m\"} 0.03\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_decode_time_seconds_sum{model_name=\"m\"} 0.04\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_inference_time_seconds_sum{model_name=\"m\"} 0.07"));
  EXPECT_THAT(text,
              HasSubstr("vllm:request_time_per_output_token_seconds_sum{model_name=\"m\"} 0.01\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_max_num_generation_tokens_sum{model_name=\"m\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"8\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_sum{model_name=\"m\"} 128\n"));
  EXPECT_THAT(text, HasSubstr("vllm:cache_config_info{block_size=\"16\",model_name=\"m\","
                              "num_gpu_blocks=\"70\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{finished_reason=\"stop\",model_name=\"m\"}"));
  EXPECT_THAT(text, testing::Not(HasSubstr("refrain:")));
  EXPECT_THAT(text, testing::Not(HasSubstr("steps_total")));
}

TEST(Metrics, SpeculationIsCountedByThePlaceOfTheDraft) {
  using testing::HasSubstr;
  EngineStats stats;
  EXPECT_THAT(Metrics("m").render(stats, {}), testing::Not(HasSubstr("spec_decode")));
  stats.ready.resize(1);
  stats.ready[0].uniform_query_len = 3;
  stats.drafts.rows = 5;
  stats.drafts.tokens = 10;
  stats.drafts.accepted = {4, 2, 0};
  const std::string text = under_vllm_names(Metrics("m").render(stats, {}));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_drafts_total{model_name=\"m\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_draft_tokens_total{model_name=\"m\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_accepted_tokens_total{model_name=\"m\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\","
                              "position=\"1\"} 2\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("position=\"2\"")));
}

}  // namespace
}  // namespace refrain
