#include "runtime/engine/output_processor.h"

#include <gtest/gtest.h>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

class OutputProcessorTest : public ::testing::Test {
 protected:
  OutputProcessorTest()
      : tokenizer(std::make_shared<const text::Tokenizer>(
            *text::Tokenizer::load("tests/fixtures/models/qwen2"))),
        outputs(tokenizer, [this](RequestId id) { stopped.push_back(id); }) {}

  void open(RequestId id, const SamplingParams& sampling) {
    outputs.open(id, 3, sampling, [this](RequestOutput output) {
      text += output.text;
      all.push_back(std::move(output));
    });
  }
  void push(RequestId id, TokenId token, StopCause stop = StopCause::kNone) {
    outputs.push({{id, {token, 0, {}}, stop, 0}});
  }
  std::vector<TokenId> encode(const std::string& words) { return *tokenizer->encode(words, false); }

  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<RequestId> stopped;
  OutputProcessor outputs;
  std::vector<RequestOutput> all;
  std::string text;
};

TEST_F(OutputProcessorTest, NoPieceCutsACharacter) {
  open(1, {});
  const std::vector<TokenId> tokens = encode("naïve 日本 🙂");
  for (size_t i = 0; i < tokens.size(); ++i)
    push(1, tokens[i], i + 1 == tokens.size() ? StopCause::kMaxTokens : StopCause::kNone);
  EXPECT_EQ(text, "naïve 日本 🙂");
  for (const RequestOutput& output : all)
    if (!output.text.empty()) {
      EXPECT_NE(static_cast<unsigned char>(output.text.front()) & 0xC0, 0x80);
    }
  EXPECT_EQ(all.size(), tokens.size());
  EXPECT_EQ(outputs.size(), 0u);
}

TEST_F(OutputProcessorTest, TheEndShowsWhatWasHeldBackForAStopString) {
  SamplingParams sampling;
  sampling.stop = {"abcdef"};
  open(1, sampling);
  const std::vector<TokenId> tokens = encode("xabc");
  for (size_t i = 0; i < tokens.size(); ++i)
    push(1, tokens[i], i + 1 == tokens.size() ? StopCause::kMaxTokens : StopCause::kNone);
  EXPECT_EQ(text, "xabc");
  EXPECT_EQ(all.back().finish, FinishReason::kLength);
  EXPECT_TRUE(stopped.empty());
}

TEST_F(OutputProcessorTest, BeforeMinTokensNoStopStringCounts) {
  SamplingParams sampling;
  sampling.stop = {"a"};
  sampling.min_tokens = 3;
  open(1, sampling);
  const TokenId a = encode("a").at(0);
  for (int i = 0; i < 4; ++i) push(1, a);
  EXPECT_EQ(text, "aaa");  // min_tokens of them; the next one may stop it, as an end token may
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(all.back().finish, FinishReason::kStop);
  EXPECT_EQ(stopped, std::vector<RequestId>{1});
  push(1, a);  // a token of a step that was in flight
  EXPECT_EQ(all.size(), 4u);
}

TEST_F(OutputProcessorTest, AStopStringThatBeginsBeforeMinTokensCountsWhereItEnds) {
  SamplingParams sampling;
  sampling.stop = {"abc"};
  sampling.min_tokens = 2;
  open(1, sampling);
  for (const char* word : {"x", "a", "b", "c"}) push(1, encode(word).at(0));
  EXPECT_EQ(text, "x");
  EXPECT_EQ(all.back().stop_reason, "abc");
}

TEST_F(OutputProcessorTest, AStopTokenIsReportedByItsIdAndNotShown) {
  open(1, {});
  push(1, encode("a").at(0));
  push(1, encode("b").at(0), StopCause::kStopToken);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(all.back().stop_token, encode("b").at(0));
  EXPECT_EQ(all.back().tokens.size(), 1u);
  EXPECT_EQ(all.back().output_tokens, 2);
}

TEST_F(OutputProcessorTest, AnErrorEndsARequestOnce) {
  open(1, {});
  outputs.end(1, FinishReason::kError, Error{ErrorCode::kUnavailable, "rank 1 died", {}});
  outputs.end(1, FinishReason::kAbort, std::nullopt);
  push(1, 5);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].error->message, "rank 1 died");
  EXPECT_EQ(all[0].prompt_tokens, 3);
}

}  // namespace
}  // namespace refrain
