#include "runtime/engine/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace refrain {
namespace {

std::string field_of(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  const Status status = check_sampling_params(params, 100);
  if (status) return "";
  EXPECT_NE(status.error().message.find(status.error().field), std::string::npos)
      << "the sentence names the field: " << status.error().message;
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  return status.error().field;
}

TEST(SamplingParams, DefaultsAreGood) {
  EXPECT_EQ(field_of([](SamplingParams&) {}), "");
}

TEST(SamplingParams, EveryRangeIsCheckedAtBothEnds) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto number = [&](double SamplingParams::*member, const std::string& field,
                          std::vector<double> good, std::vector<double> bad) {
    for (const double value : good)
      EXPECT_EQ(field_of([&](SamplingParams& p) { p.*member = value; }), "") << field << value;
    bad.insert(bad.end(), {nan, 1e308, -1e308, HUGE_VAL});
    for (const double value : bad)
      EXPECT_EQ(field_of([&](SamplingParams& p) { p.*member = value; }), field) << value;
  };
  number(&SamplingParams::temperature, "temperature", {0, 2}, {-0.01, 2.01});
  number(&SamplingParams::top_p, "top_p", {0.001, 1}, {0, 1.01});
  number(&SamplingParams::min_p, "min_p", {0, 1}, {-0.01, 1.01});
  number(&SamplingParams::repetition_penalty, "repetition_penalty", {0.01, 10},
         {0, 1e-40, 1e-300, 0.0099, 10.1});
  number(&SamplingParams::presence_penalty, "presence_penalty", {-2, 2}, {-2.1, 2.1});
  number(&SamplingParams::frequency_penalty, "frequency_penalty", {-2, 2}, {-2.1, 2.1});
  const auto whole = [&](int64_t SamplingParams::*member, const std::string& field, int64_t bad) {
    EXPECT_EQ(field_of([&](SamplingParams& p) { p.*member = bad; }), field) << bad;
  };
  whole(&SamplingParams::max_tokens, "max_tokens", 0);
  whole(&SamplingParams::max_tokens, "max_tokens", -1);
  whole(&SamplingParams::min_tokens, "min_tokens", -1);
  whole(&SamplingParams::min_tokens, "min_tokens", 17);  // above max_tokens
  whole(&SamplingParams::top_k, "top_k", -2);
  whole(&SamplingParams::top_k, "top_k", int64_t{1} << 31);
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logprobs = 20; }), "");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logprobs = 21; }), "logprobs");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logprobs = -2; }), "logprobs");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.prompt_logprobs = 0; }), "");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.prompt_logprobs = 21; }), "prompt_logprobs");
}

TEST(SamplingParams, TokensMustExistAndListsHaveAnEnd) {
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logit_bias = {{99, 100.f}, {0, -100.f}}; }), "");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logit_bias = {{100, 1.f}}; }), "logit_bias");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logit_bias = {{1, 100.5f}}; }), "logit_bias");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.logit_bias.resize(301); }), "logit_bias");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.stop_token_ids = {-1}; }), "stop_token_ids");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.allowed_token_ids.emplace(); }),
            "allowed_token_ids");
  EXPECT_EQ(field_of([](SamplingParams& p) {
              p.allowed_token_ids = {{5, 200}};
            }),
            "allowed_token_ids");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.stop = {""}; }), "stop");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.stop.assign(17, "x"); }), "stop");
  EXPECT_EQ(field_of([](SamplingParams& p) { p.stop = {std::string(1025, 'x')}; }), "stop");
}

TEST(FinishReason, UsesTheWordsOfTheApi) {
  EXPECT_STREQ(to_string(FinishReason::kStop), "stop");
  EXPECT_STREQ(to_string(FinishReason::kLength), "length");
}

}  // namespace
}  // namespace refrain
