// Holds Tokenizer and IncrementalDetokenizer against Hugging Face `tokenizers` on real
// vocabularies: a mixed text above 1 MB, 1,000 random strings, special tokens, llama.cpp's encode
// fixtures.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/text/detokenizer.h"
#include "runtime/text/tokenizer.h"
#include "tests/oracle/fixtures.h"

namespace refrain::text {
namespace {

struct Fixture {
  std::vector<std::string> texts, decoded, decoded_skipping;
  std::vector<std::vector<TokenId>> ids, ids_with_special;
};

Fixture read_fixture(const std::filesystem::path& dir) {
  return {read_blobs(dir / "texts.bin"), read_blobs(dir / "decoded.bin"),
          read_blobs(dir / "decoded_skipping.bin"), read_id_lists(dir / "ids.bin"),
          read_id_lists(dir / "ids_with_special.bin")};
}

// Where two id lists part, for the failure message.
std::string difference(const Tokenizer& tokenizer, const std::vector<TokenId>& got,
                       const std::vector<TokenId>& expected) {
  const auto [a, b] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  const auto at = a - got.begin();
  std::string out = "they part at token " + std::to_string(at) + ":";
  for (const auto* list : {&got, &expected}) {
    out += list == &got ? " got" : " expected";
    for (auto i = std::max<ptrdiff_t>(0, at - 3);
         i < std::min(at + 5, static_cast<ptrdiff_t>(list->size())); ++i)
      out += " [" + tokenizer.token_to_string((*list)[static_cast<size_t>(i)]) + "]";
  }
  return out;
}

class TokenizerOracle : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(fixtures_dir().empty()) << how_to_make_fixtures();
    const auto dir = fixtures_dir() / "tokenizers" / GetParam();
    auto loaded = Tokenizer::load(dir);
    ASSERT_TRUE(loaded) << loaded.error().message;
    tokenizer_.emplace(std::move(*loaded));
    fixture_ = read_fixture(dir);
    ASSERT_GE(fixture_.texts.size(), 1000U);
    ASSERT_EQ(fixture_.texts.size(), fixture_.ids.size());
  }

  void encodes();
  void adds_special_tokens();
  void decodes();
  void detokenizes_step_by_step();
  void encodes_from_many_threads();

  std::optional<Tokenizer> tokenizer_;
  Fixture fixture_;
};

// One test, since most of its time is the reading of the vocabulary.
TEST_P(TokenizerOracle, DoesAsHuggingFace) {
  encodes();
  adds_special_tokens();
  decodes();
  detokenizes_step_by_step();
  encodes_from_many_threads();
}

void TokenizerOracle::encodes() {
  int wrong = 0;
  for (size_t i = 0; i < fixture_.texts.size(); ++i) {
    const auto ids = tokenizer_->encode(fixture_.texts[i], false);
    ASSERT_TRUE(ids) << ids.error().message;
    if (*ids == fixture_.ids[i]) continue;
    ++wrong;
    if (wrong <= 5)
      ADD_FAILURE() << "text " << i << ": " << difference(*tokenizer_, *ids, fixture_.ids[i]);
  }
  EXPECT_EQ(wrong, 0) << "of " << fixture_.texts.size();
}

void TokenizerOracle::adds_special_tokens() {
  const size_t count = fixture_.ids_with_special.size();
  ASSERT_GT(count, 0U);
  for (size_t i = 0; i < count; ++i) {
    const auto ids = tokenizer_->encode(fixture_.texts[fixture_.texts.size() - count + i], true);
    ASSERT_TRUE(ids);
    EXPECT_EQ(*ids, fixture_.ids_with_special[i]);
  }
}

void TokenizerOracle::decodes() {
  for (size_t i = 0; i < fixture_.ids.size(); ++i) {
    ASSERT_EQ(tokenizer_->decode(fixture_.ids[i], false), fixture_.decoded[i]) << "text " << i;
    ASSERT_EQ(tokenizer_->decode(fixture_.ids[i], true), fixture_.decoded_skipping[i])
        << "text " << i;
  }
}

void TokenizerOracle::detokenizes_step_by_step() {
  for (size_t i = 0; i < fixture_.ids.size(); ++i) {
    IncrementalDetokenizer detokenizer(*tokenizer_, {.skip_special_tokens = true});
    std::string text;
    for (const TokenId id : fixture_.ids[i]) text += detokenizer.push(id);
    text += detokenizer.flush();
    ASSERT_EQ(text, fixture_.decoded_skipping[i]) << "text " << i;
  }
}

void TokenizerOracle::encodes_from_many_threads() {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < 1000; ++i) {
        const auto ids = tokenizer_->encode(fixture_.texts[1 + i % 1000], false);
        if (!ids || *ids != fixture_.ids[1 + i % 1000]) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

// The keys of VOCABULARIES in text_vocabularies.py.
INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerOracle,
                         testing::Values("smollm2", "llama3", "qwen2", "qwen35", "gpt2",
                                         "starcoder", "refact", "command-r", "deepseek-coder",
                                         "falcon", "gemma", "llama2", "phi3", "llama2-metaspace",
                                         "llama2-metaspace-split", "qwen2-o200k", "qwen2-deepseek3",
                                         "qwen2-kimi", "qwen2-prefix", "gpt2-corners",
                                         "gpt2-behaviors", "gpt2-whitespace"),
                         test_name);

TEST(TextFixtures, AreThere) {
  ASSERT_FALSE(fixtures_dir().empty()) << how_to_make_fixtures();
  EXPECT_EQ(fixture_names("tokenizers").size(), 22U);
  EXPECT_GE(fixture_names("templates").size(), 70U);
}

}  // namespace
}  // namespace refrain::text
