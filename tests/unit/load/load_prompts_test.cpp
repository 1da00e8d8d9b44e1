#include "runtime/load/load_prompts.h"

#include <gmock/gmock.h>

#include <fstream>

#include "runtime/base/json.h"
#include "runtime/load/python_random.h"
#include "tests/temporary_directory.h"

namespace refrain {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The numbers of the first two tests were printed by Python 3.11.
TEST(PythonRandom, GivesTheNumbersOfPythonsModule) {
  PythonRandom random(0);
  EXPECT_EQ(random.random(), 0.8444218515250481);
  EXPECT_EQ(random.randrange(0, 100), 97);
  EXPECT_EQ(random.random(), 0.890243920837131);
  EXPECT_EQ(PythonRandom((uint64_t{1} << 40) + 3).random(), 0.21978710637116716);
}

TEST(Load, ShareGptLikeRequestsAreThoseOfAScriptInPythonWithTheSameSeed) {
  LoadOptions options;
  options.seed = 7;
  options.num_prompts = 5;
  options.random_prefix_len = 3;
  options.request_rate = 4;
  const auto load = make_load(options, nullptr);
  ASSERT_TRUE(load);
  std::vector<std::vector<int64_t>> seen;  // length, answer, first of its own, last
  for (const LoadPrompt& prompt : load->prompts) {
    EXPECT_THAT(std::vector<int32_t>(prompt.ids.begin(), prompt.ids.begin() + 3),
                ElementsAre(10621, 4953, 12947));
    seen.push_back({static_cast<int64_t>(prompt.ids.size()), prompt.max_tokens, prompt.ids[3],
                    prompt.ids.back()});
  }
  EXPECT_THAT(seen,
              ElementsAre(ElementsAre(187, 79, 17569, 7655), ElementsAre(40, 119, 19992, 19694),
                          ElementsAre(739, 68, 4877, 23838), ElementsAre(22, 175, 67, 28517),
                          ElementsAre(120, 170, 1591, 9103)));
  const double a = 0.290190959146212, b = 0.1883441215794261, c = 0.39053351579605;
  ASSERT_EQ(load->starts.size(), 5u);
  EXPECT_DOUBLE_EQ(load->starts[0], a);
  EXPECT_DOUBLE_EQ(load->starts[1], a + b);
  EXPECT_DOUBLE_EQ(load->starts[2], a + b + c);
}

TEST(Load, WithoutARateAllStartAtOnce) {
  LoadOptions options;
  options.num_prompts = 3;
  EXPECT_THAT(make_load(options, nullptr)->starts, ElementsAre(0, 0, 0));
}

TEST(Load, BurstinessKeepsTheMeanRateAndChangesTheSpread) {
  LoadOptions options;
  options.dataset = "random";
  options.random_input_len = 1;
  options.num_prompts = 20000;
  options.request_rate = 10;
  const auto spread = [&](double burstiness) {
    options.burstiness = burstiness;
    const auto load = make_load(options, nullptr);
    double last = 0, squares = 0;
    for (const double start : load->starts) {
      squares += (start - last) * (start - last);
      last = start;
    }
    const double mean = last / 20000;
    EXPECT_THAT(mean, DoubleNear(0.1, 0.005));
    return squares / 20000 / (mean * mean) - 1;  // 1 / burstiness for gamma-distributed gaps
  };
  EXPECT_THAT(spread(1), DoubleNear(1, 0.1));
  EXPECT_THAT(spread(4), DoubleNear(0.25, 0.03));
  EXPECT_THAT(spread(0.5), DoubleNear(2, 0.3));
}

TEST(Load, ARampGoesFromOneRateToTheOther) {
  LoadOptions options;
  options.num_prompts = 10000;
  options.dataset = "random";
  options.random_input_len = 1;
  options.ramp_up_strategy = "linear";
  options.ramp_up_start_rps = 10;
  options.ramp_up_end_rps = 100;
  const auto starts = make_load(options, nullptr)->starts;
  EXPECT_THAT(starts[999] / 1000, DoubleNear(1 / 14.5, 0.01));
  EXPECT_THAT((starts[9999] - starts[8999]) / 1000, DoubleNear(1 / 95.5, 0.002));
}

TEST(Load, RandomLengthsStayWithinTheirRange) {
  LoadOptions options;
  options.dataset = "random";
  options.num_prompts = 500;
  options.random_input_len = 100;
  options.random_output_len = 10;
  options.random_range_ratio = 0.2;
  options.random_prefix_len = 5;
  options.vocab_size = 50;
  const auto load = make_load(options, nullptr);
  size_t least = 1000, most = 0;
  for (const LoadPrompt& prompt : load->prompts) {
    least = std::min(least, prompt.ids.size());
    most = std::max(most, prompt.ids.size());
    EXPECT_TRUE(prompt.max_tokens >= 8 && prompt.max_tokens <= 12);
    for (const int32_t id : prompt.ids) EXPECT_TRUE(id >= 10 && id < 50) << id;
  }
  EXPECT_EQ(least, 85u);
  EXPECT_EQ(most, 125u);
}

TEST(Load, PrefixesAreUsedInTurn) {
  LoadOptions options;
  options.dataset = "prefix_repetition";
  options.num_prompts = 5;
  options.prefix_len = 4;
  options.prefix_suffix_len = 2;
  options.prefix_num_prefixes = 2;
  const auto load = make_load(options, nullptr);
  const auto prefix = [&](size_t i) {
    return std::vector<int32_t>(load->prompts[i].ids.begin(), load->prompts[i].ids.begin() + 4);
  };
  EXPECT_EQ(prefix(0), prefix(2));
  EXPECT_EQ(prefix(1), prefix(3));
  EXPECT_NE(prefix(0), prefix(1));
  EXPECT_EQ(load->prompts[4].ids.size(), 6u);
}

LoadOptions custom(const std::filesystem::path& file, const std::string& lines) {
  std::ofstream(file) << lines;
  LoadOptions options;
  options.dataset = "custom";
  options.dataset_path = file.string();
  options.model = "m";
  return options;
}

TEST(Load, AFilesLinesAreSentInTurn) {
  const tests::TemporaryDirectory directory;
  LoadOptions options = custom(directory.path() / "lines.jsonl",
                               "{\"prompt\":\"one\",\"output_tokens\":3}\n\n"
                               "{\"prompt_ids\":[1,2]}\n{\"input_len\":7,\"output_len\":9}\n");
  options.num_prompts = 4;
  const auto load = make_load(options, nullptr);
  ASSERT_TRUE(load) << load.error().message;
  const nlohmann::json extra = {{"top_k", 5}};
  const auto body = [&](size_t i) {
    return nlohmann::json::parse(request_body(options, extra, load->prompts[i]));
  };
  EXPECT_EQ(body(0)["prompt"], "one");
  EXPECT_EQ(body(0)["max_tokens"], 3);
  EXPECT_EQ(body(0)["top_k"], 5);
  EXPECT_EQ(body(0)["stream_options"]["include_usage"], true);
  EXPECT_FALSE(body(0).contains("ignore_eos"));
  EXPECT_EQ(body(1)["prompt"], (std::vector<int>{1, 2}));
  EXPECT_EQ(body(1)["max_tokens"], 256);
  EXPECT_EQ(body(2)["prompt"].size(), 7u);
  EXPECT_EQ(body(2)["max_tokens"], 9);
  EXPECT_EQ(body(3)["prompt"], "one");
}

TEST(Load, ABadLineIsNamed) {
  const tests::TemporaryDirectory directory;
  const auto file = directory.path() / "lines.jsonl";
  for (const auto& [lines, word] : {std::pair{"{\"prompt\":\"a\"}\nnonsense\n", "line 2"},
                                    {"{\"x\":1}\n", "input_len"},
                                    {"{\"prompt\":\"a\",\"max_tokens\":0}\n", "max_tokens"},
                                    {"", "no line"},
                                    {"{\"messages\":[]}", "/v1/chat/completions"},
                                    {"{\"prompt_ids\":[]}", "prompt_ids"}}) {
    const auto load = make_load(custom(file, lines), nullptr);
    ASSERT_FALSE(load) << lines;
    EXPECT_THAT(load.error().message, HasSubstr(word));
    EXPECT_EQ(load.error().field, "--dataset-path");
  }
}

TEST(Load, AChatGetsOneMessage) {
  LoadOptions options;
  options.endpoint = "/v1/chat/completions";
  options.num_prompts = 1;
  ASSERT_TRUE(finish_load_options(options));
  const auto load = make_load(options, nullptr);
  const auto body =
      nlohmann::json::parse(request_body(options, nlohmann::json::object(), load->prompts[0]));
  EXPECT_EQ(body["messages"][0]["role"], "user");
  EXPECT_FALSE(body["messages"][0]["content"].get<std::string>().empty());
  EXPECT_FALSE(body.contains("prompt"));
}

}  // namespace
}  // namespace refrain
