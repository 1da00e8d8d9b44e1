#include "runtime/front/codec.h"

#include <gtest/gtest.h>

#include <random>

namespace refrain::front {
namespace {

template <class T>
T round_trip(const T& message) {
  std::vector<std::byte> frame;
  EXPECT_TRUE(encode_frame(message, {7, 9}, frame).has_value());
  auto decoded = decode_frame(frame);
  EXPECT_TRUE(decoded.has_value()) << (decoded ? "" : decoded.error().message);
  EXPECT_EQ(decoded->info.epoch, 7u);
  EXPECT_EQ(decoded->info.sequence, 9u);
  return std::get<T>(decoded->message);
}

Submit full_submit() {
  Submit submit;
  submit.id = 5;
  submit.adapter = "lora";
  GenerateRequest& request = submit.request;
  request.prompt = {1, 2, 3};
  request.sampling.temperature = 0.25;
  request.sampling.seed = 1ULL << 60;
  request.sampling.logit_bias = {{4, 1.5f}};
  request.sampling.allowed_token_ids = std::vector<TokenId>{4, 5};
  request.sampling.bad_words = {{1}, {2, 3}};
  request.sampling.grammar = std::string("j\0{}", 4);
  request.sampling.reasoning_end = {9};
  request.sampling.stop_token_ids = {6};
  request.sampling.max_tokens = 77;
  request.cache_salt = "\xff salt";
  request.max_queue_wait = std::chrono::milliseconds(5);
  request.timeout = std::chrono::seconds(2);
  request.priority = -3;
  request.admitted = true;
  request.begun = BegunAnswer{{7, 8}, 2};
  return submit;
}

Tokens full_tokens() {
  Tokens tokens;
  TokenArrival arrival;
  arrival.id = 3;
  arrival.token = {11, -0.5f, {{11, -0.5f}, {12, -1.0f}}};
  arrival.stop = StopCause::kStopToken;
  arrival.cached_tokens = 4;
  arrival.scheduled = TimePoint(std::chrono::milliseconds(123));
  auto scores = std::make_shared<ipc::PromptScores>();
  scores->logprobs = {-1};
  scores->ranks = {2};
  scores->top_offsets = {0, 1};
  scores->top_tokens = {5};
  scores->top_logprobs = {-0.1f};
  arrival.prompt = scores;
  arrival.pooled = std::make_shared<const std::vector<float>>(std::vector<float>{1, 2});
  tokens.arrivals = {arrival, TokenArrival{4, {1, 0, {}}, StopCause::kNone, 0}};
  return tokens;
}

TEST(FrontCodec, ASubmissionArrivesWhole) {
  const Submit sent = full_submit();
  const Submit got = round_trip(sent);
  EXPECT_EQ(got.id, sent.id);
  EXPECT_EQ(got.adapter, sent.adapter);
  const GenerateRequest &a = got.request, &b = sent.request;
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.sampling.temperature, b.sampling.temperature);
  EXPECT_EQ(a.sampling.seed, b.sampling.seed);
  EXPECT_EQ(a.sampling.logit_bias, b.sampling.logit_bias);
  EXPECT_EQ(a.sampling.allowed_token_ids, b.sampling.allowed_token_ids);
  EXPECT_EQ(a.sampling.bad_words, b.sampling.bad_words);
  EXPECT_EQ(a.sampling.grammar, b.sampling.grammar);
  EXPECT_EQ(a.sampling.reasoning_end, b.sampling.reasoning_end);
  EXPECT_EQ(a.sampling.stop_token_ids, b.sampling.stop_token_ids);
  EXPECT_EQ(a.sampling.max_tokens, b.sampling.max_tokens);
  EXPECT_EQ(a.cache_salt, b.cache_salt);
  EXPECT_EQ(a.max_queue_wait, b.max_queue_wait);
  EXPECT_EQ(a.timeout, b.timeout);
  EXPECT_EQ(a.priority, b.priority);
  EXPECT_TRUE(a.admitted);
  EXPECT_EQ(a.begun->tokens, b.begun->tokens);
  EXPECT_EQ(a.begun->cached_tokens, b.begun->cached_tokens);
}

TEST(FrontCodec, TokensArriveWhole) {
  const Tokens sent = full_tokens();
  const Tokens got = round_trip(sent);
  ASSERT_EQ(got.arrivals.size(), 2u);
  const TokenArrival &a = got.arrivals[0], &b = sent.arrivals[0];
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.token.token, b.token.token);
  EXPECT_EQ(a.token.logprob, b.token.logprob);
  EXPECT_EQ(a.token.top.size(), 2u);
  EXPECT_EQ(a.stop, b.stop);
  EXPECT_EQ(a.cached_tokens, b.cached_tokens);
  EXPECT_EQ(a.scheduled, b.scheduled);
  EXPECT_EQ(*a.prompt, *b.prompt);
  EXPECT_EQ(*a.pooled, *b.pooled);
  EXPECT_EQ(got.arrivals[1].prompt, nullptr);
}

TEST(FrontCodec, StatisticsArriveWhole) {
  Stats sent;
  sent.late = 3;
  sent.stats.requests_total = 9;
  sent.stats.state = GroupState::kReady;
  sent.stats.graph_uses = {{"FULL", 3, 4, 17, true}};
  sent.stats.drafts.accepted[2] = 5;
  sent.stats.devices = {"host"};
  sent.stats.ready.resize(1);
  sent.stats.ready[0].cudagraph_mode = "FULL";
  sent.stats.groups.resize(2);
  sent.stats.groups[1].state_detail = "rank 1: capture 12/86";
  const Stats got = round_trip(sent);
  EXPECT_EQ(got.late, 3u);
  EXPECT_EQ(got.stats.requests_total, 9u);
  EXPECT_EQ(got.stats.state, GroupState::kReady);
  EXPECT_EQ(got.stats.graph_uses.at(0).count, 17u);
  EXPECT_EQ(got.stats.drafts.accepted[2], 5u);
  EXPECT_EQ(got.stats.devices, sent.stats.devices);
  EXPECT_EQ(got.stats.ready.at(0).cudagraph_mode, "FULL");
  EXPECT_EQ(got.stats.groups.at(1).state_detail, "rank 1: capture 12/86");
}

// Cut short, or with a byte changed behind the checksum: an error, and never more than that.
TEST(FrontCodec, BrokenFramesAreErrors_R1) {
  std::mt19937_64 random(1);
  for (const Message& message :
       {Message(full_submit()), Message(full_tokens()), Message(Stats{}), Message(State{}),
        Message(Ended{1, FinishReason::kError, Error{}})}) {
    std::vector<std::byte> frame;
    ASSERT_TRUE(encode_frame(message, {}, frame).has_value());
    for (size_t size = 0; size < frame.size(); ++size)
      EXPECT_FALSE(decode_frame(std::span(frame).first(size)).has_value());
    for (int i = 0; i < 500; ++i) {
      std::vector<std::byte> broken = frame;
      const size_t at = random() % broken.size();
      broken[at] ^= static_cast<std::byte>(1 + random() % 255);
      EXPECT_FALSE(decode_frame(broken).has_value()) << message_name(message.index()) << " " << at;
    }
  }
}

}  // namespace
}  // namespace refrain::front
