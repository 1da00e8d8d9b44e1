#include "runtime/engine/request_intake.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

struct Intake {
  static EngineConfig four_at_once() {
    EngineConfig config;
    config.worker.max_model_len = 64;
    config.worker.max_num_seqs = 4;
    config.max_queue = 1;
    return config;
  }
  static ModelConfig any_model() {
    ModelConfig model;
    model.vocab_size = 100;
    return model;
  }
  Result<RequestId> accept() {
    GenerateRequest request;
    request.prompt = {1, 2, 3};
    request.sampling.max_tokens = 4;
    return intake.accept(request, {});
  }
  const EngineConfig config = four_at_once();
  const ModelConfig model = any_model();
  RequestIntake intake{config, model};
};

TEST(RequestIntake, NumbersWhatItAcceptsAndRefusesWhatWouldWait) {
  Intake with;
  for (RequestId id = 1; id <= 5; ++id) EXPECT_EQ(with.accept().value(), id);
  const auto refused = with.accept();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(with.intake.stats().refused_queue, 1u);
  with.intake.gone(3);
  EXPECT_TRUE(with.accept());
}

TEST(RequestIntake, ADrainIsOverWithTheLastRequestAndLetsNoneIn) {
  Intake with;
  const RequestId first = with.accept().value(), second = with.accept().value();
  int drained = 0;
  with.intake.drain([&] { ++drained; });
  ASSERT_FALSE(with.accept());
  EXPECT_EQ(with.intake.accepting().error().code, ErrorCode::kUnavailable);
  with.intake.gone(first);
  EXPECT_EQ(drained, 0);
  with.intake.gone(second);
  EXPECT_EQ(drained, 1);
}

TEST(RequestIntake, ADrainWithoutRequestsIsOverAtOnce) {
  Intake with;
  int drained = 0;
  with.intake.drain([&] { ++drained; });
  EXPECT_EQ(drained, 1);
}

TEST(RequestIntake, TheLastErrorIsWhyNoneIsAccepted) {
  Intake with;
  EXPECT_FALSE(with.intake.refusal());
  with.intake.refuse_from_now_on({ErrorCode::kUnavailable, "no workers", {}});
  EXPECT_EQ(with.intake.refusal()->message, "no workers");
  EXPECT_EQ(with.accept().error().message, "no workers");
}

}  // namespace
}  // namespace refrain
