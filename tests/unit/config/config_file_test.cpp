#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/temporary_directory.h"
#include "tests/unit/config/command_line.h"

namespace refrain {
namespace {

using testing::HasSubstr;

class ConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    return directory_.write(std::to_string(++files_) + ".json", text);
  }

 private:
  tests::TemporaryDirectory directory_;
  int files_ = 0;
};

TEST_F(ConfigFile, HoldsOptionsByTheirNamesWithEitherDash) {
  const auto path = write(R"({"$schema": "x", "max-num-seqs": 7, "max_model_len": 99,
      "enforce-eager": true, "enable_prefix_caching": false, "served-model-name": ["a", "b"],
      "cudagraph-capture-sizes": [1, 2], "drain-timeout": 1.25,
      "compilation-config": {"cudagraph_mode": "FULL"}})");
  const Parsed parsed = parse_words({"--config", path});
  ASSERT_TRUE(parsed.outcome) << parsed.error();
  EXPECT_EQ(parsed.config.worker.max_num_seqs, 7);
  EXPECT_EQ(parsed.config.worker.max_model_len, 99);
  EXPECT_TRUE(parsed.config.worker.enforce_eager);
  EXPECT_FALSE(parsed.config.enable_prefix_caching);
  EXPECT_EQ(parsed.config.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parsed.config.worker.cudagraph_capture_sizes, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(parsed.config.worker.cudagraph_mode, "FULL");
  EXPECT_EQ(parsed.config.drain_timeout, 1.25);
}

TEST_F(ConfigFile, TheCommandLineWinsWhereverItStands) {
  const auto path = write(R"({"max-num-seqs": 7, "seed": 3})");
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--max-num-seqs", "9", "--config", path}, {"--config=" + path, "--max-num-seqs=9"}}) {
    const Parsed parsed = parse_words(words);
    ASSERT_TRUE(parsed.outcome) << parsed.error();
    EXPECT_EQ(parsed.config.worker.max_num_seqs, 9);
    EXPECT_EQ(parsed.config.worker.seed, 3);
  }
}

// A key that was replaced must not stay valid beside the new one.
TEST_F(ConfigFile, TheCommandLinesListReplacesTheFiles) {
  const auto path = write(R"({"api_key": ["old,1", "old2"], "served-model-name": ["a", "b"]})");
  EXPECT_EQ(parse_words({"--config", path}).config.api_keys,
            (std::vector<std::string>{"old,1", "old2"}));
  const Parsed parsed = parse_words({"--config", path, "--api-key", "new"});
  ASSERT_TRUE(parsed.outcome) << parsed.error();
  EXPECT_EQ(parsed.config.api_keys, std::vector<std::string>{"new"});
  EXPECT_EQ(parsed.config.served_model_names, (std::vector<std::string>{"a", "b"}));
}

TEST_F(ConfigFile, MistakesNameTheFileOrTheOption) {
  EXPECT_THAT(parse_words({"--config", "/nowhere.json"}).error(), HasSubstr("/nowhere.json"));
  const auto broken = write("{");
  EXPECT_THAT(parse_words({"--config", broken}).error(), HasSubstr(broken));
  const auto list = write("[1]");
  EXPECT_THAT(parse_words({"--config", list}).error(), HasSubstr("one JSON object"));
  const auto unknown = write(R"({"max-num-seq": 7})");
  EXPECT_THAT(parse_words({"--config", unknown}).error(), HasSubstr("--max-num-seqs"));
  const auto nothing = write(R"({"seed": null})");
  EXPECT_THAT(parse_words({"--config", nothing}).error(), HasSubstr("seed"));
  const auto nested = write(R"({"config": "other.json"})");
  EXPECT_THAT(parse_words({"--config", nested}).error(), HasSubstr("cannot name another"));
  const auto range = write(R"({"port": 99999})");
  EXPECT_THAT(parse_words({"--config", range}).error(), HasSubstr("--port"));
}

TEST(ConfigFiles, OfTheProjectParse) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs/engine")) {
    const Parsed parsed = parse_words({"--config", entry.path().string()});
    EXPECT_TRUE(parsed.outcome) << entry.path() << ": " << parsed.error();
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST_F(ConfigFile, TheCommandLineWinsUnderEitherName) {
  const auto path = write(R"({"cudagraph-capture-sizes": [1, 2], "mem-fraction-static": 0.3})");
  const Parsed parsed =
      parse_words({"--config", path, "--cuda-graph-bs", "4", "--gpu-memory-utilization", "0.4"});
  ASSERT_TRUE(parsed.outcome) << parsed.error();
  EXPECT_EQ(parsed.config.worker.cudagraph_capture_sizes, std::vector<int32_t>{4});
  EXPECT_EQ(parsed.config.worker.gpu_memory_utilization, 0.4);
}

}  // namespace
}  // namespace refrain
