#include "runtime/load/load_figures.h"

#include <gmock/gmock.h>

#include "runtime/base/json.h"
#include "runtime/load/load_plot.h"
#include "runtime/load/server_counters.h"

namespace refrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Tokens at start + ttft, then every `gap` seconds.
LoadRecord answer(double start, double ttft, float gap, int tokens) {
  LoadRecord record;
  record.start = start;
  record.ttft = ttft;
  record.itl.assign(static_cast<size_t>(tokens - 1), gap);
  record.end = ttft + gap * static_cast<float>(tokens - 1);
  record.input_tokens = 100;
  record.output_tokens = record.asked_tokens = tokens;
  return record;
}

LoadRecord failed(const char* why) {
  LoadRecord record;
  record.error = why;
  return record;
}

TEST(LoadFigures, SampleAtIsTheSampleAtThatShareOfTheRanks) {
  std::vector<double> samples;
  EXPECT_EQ(sample_at(samples, 0.5), 0);
  for (int i = 0; i < 100; ++i) samples.push_back(i);
  EXPECT_EQ(sample_at(samples, 0), 0);
  EXPECT_EQ(sample_at(samples, 0.5), 50);
  EXPECT_EQ(sample_at(samples, 0.99), 99);
  EXPECT_EQ(sample_at(samples, 1), 99);
  EXPECT_EQ(sample_at({3, 7}, 0.5), 7);
}

TEST(LoadFigures, AreTheArithmeticOfTheAnswers) {
  LoadOptions options;
  options.goodput = {{"ttft", 150}, {"tpot", 30}};
  options.metric_percentiles = {50, 99.9};
  const LoadFigures figures = load_figures(
      {answer(0, 0.1, 0.25F, 5), answer(0.5, 0.2, 0.0078125F, 3), answer(1, 0.1, 0.015625F, 9),
       failed("HTTP 429"), failed("HTTP 429"), failed("no token came")},
      4.0, options);
  EXPECT_EQ(figures.completed, 3);
  EXPECT_EQ(figures.failed, 3);
  EXPECT_EQ(figures.errors.at("HTTP 429"), 2);
  EXPECT_EQ(figures.good, 1);              // the first is slow a token, the second late
  EXPECT_EQ(figures.peak_concurrency, 2);  // the third comes when the second has gone
  const auto json = figures_json(figures, options);
  EXPECT_DOUBLE_EQ(json["request_throughput"], 0.75);
  EXPECT_DOUBLE_EQ(json["request_goodput"], 0.25);
  EXPECT_EQ(json["total_output_tokens"], 17);
  EXPECT_DOUBLE_EQ(json["output_throughput"], 4.25);
  EXPECT_DOUBLE_EQ(json["total_token_throughput"], 317 / 4.0);
  EXPECT_DOUBLE_EQ(json["median_ttft_ms"], 100);
  EXPECT_DOUBLE_EQ(json["p99.9_ttft_ms"], 200);
  EXPECT_NEAR(json["mean_ttft_ms"], 400.0 / 3, 1e-9);
  EXPECT_NEAR(json["std_ttft_ms"], 47.1404520791, 1e-6);  // of the population
  EXPECT_DOUBLE_EQ(json["median_tpot_ms"], 15.625);
  EXPECT_DOUBLE_EQ(json["median_itl_ms"], 15.625);
  EXPECT_DOUBLE_EQ(json["p99.9_e2el_ms"], 1100);
  EXPECT_EQ(json["request_rate"], "inf");
}

TEST(LoadFigures, ASingleTokenHasNoTimePerToken) {
  const LoadFigures figures = load_figures({answer(0, 0.1, 0, 1)}, 1, {});
  EXPECT_TRUE(figures.metrics[1].samples.empty());
  EXPECT_EQ(figures.metrics[0].samples.size(), 1u);
}

TEST(LoadFigures, AnAnswerShorterThanAskedForIsCounted) {
  LoadRecord record = answer(0, 0.1, 0.1F, 4);
  record.asked_tokens = 5;
  EXPECT_EQ(load_figures({record, answer(0, 0.1, 0.1F, 5)}, 1, {}).short_answers, 1);
}

TEST(LoadFigures, TheTimelineHasEveryTokenAndEveryRequestInItsSeconds) {
  // Two tokens an event: 8 tokens in 4 events at 0.5, 1, 1.5 and 2.
  LoadRecord record = answer(0, 0.5, 0.5F, 4);
  record.output_tokens = 8;
  const auto seconds = load_timeline({record}, 2.5);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_DOUBLE_EQ(seconds[0].output_tokens, 2);
  EXPECT_DOUBLE_EQ(seconds[1].output_tokens, 4);
  EXPECT_DOUBLE_EQ(seconds[2].output_tokens, 2);
  EXPECT_EQ(seconds[1].requests, 1);
}

TEST(LoadFigures, TheTableShowsWhatWasAskedForAndEveryKindOfError) {
  LoadOptions options;
  options.percentile_metrics = {"ttft"};
  const std::string table = figures_table(
      load_figures({answer(0, 0.1, 0.1F, 3), failed("HTTP 429: busy")}, 1, options), options);
  EXPECT_THAT(table, HasSubstr("Failed requests:                         1"));
  EXPECT_THAT(table, HasSubstr("P99 TTFT (ms):"));
  EXPECT_THAT(table, HasSubstr("failed 1 times: HTTP 429: busy"));
  EXPECT_THAT(table, Not(HasSubstr("TPOT")));
}

TEST(LoadFigures, NothingAnsweredGivesZeros) {
  const LoadFigures figures = load_figures({failed("x")}, 0, {});
  EXPECT_EQ(figures_json(figures, {})["output_throughput"], 0);
  EXPECT_THAT(figures_table(figures, {}), HasSubstr("Successful requests:                     0"));
  EXPECT_THAT(load_plot(figures, {failed("x")}), HasSubstr("</svg>"));
}

TEST(LoadFigures, ThePlotHasALineForEachFigure) {
  const std::vector<LoadRecord> records(50, answer(0, 0.1, 0.1F, 30));
  const std::string svg = load_plot(load_figures(records, 4, {}), records);
  size_t lines = 0;
  for (size_t at = 0; (at = svg.find("class=\"line\" d=\"M", at)) != std::string::npos; ++at)
    ++lines;
  EXPECT_EQ(lines, 6u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

const char* const kMetrics =
    "# HELP refrain:requests_resumed_total x\n"
    "refrain:worker_group_restarts_total{model_name=\"m\"} 0\n"
    "refrain:requests_resumed_total{model_name=\"m\"} 2\n"
    "refrain:requests_without_logit_total{model_name=\"m\"} 0\n";

TEST(ServerCounters, R21AreReadFromMetricsAndWhatMovedIsSaid) {
  const auto before = read_counters(std::string(kMetrics) +
                                    "refrain:audit_differences_total{model_name=\"m\"} 1\n");
  ASSERT_TRUE(before && *before);
  EXPECT_EQ((*before)->requests_resumed, 2u);
  EXPECT_TRUE(undisturbed(**before, **before));
  for (const auto counter :
       {&ServerCounters::group_restarts, &ServerCounters::requests_resumed,
        &ServerCounters::requests_without_logit, &ServerCounters::audit_differences}) {
    ServerCounters after = **before;
    after.*counter += 3;
    const Status moved = undisturbed(**before, after);
    ASSERT_FALSE(moved);
    EXPECT_THAT(moved.error().message, HasSubstr("3 "));
  }
}

TEST(ServerCounters, R21OneThatIsMissingIsAnErrorAndAnotherServerHasNone) {
  const auto missing = read_counters(kMetrics);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("audit_differences_total"));
  const auto other = read_counters("vllm:num_requests_running 1\n");
  ASSERT_TRUE(other);
  EXPECT_FALSE(*other);
}

}  // namespace
}  // namespace refrain
