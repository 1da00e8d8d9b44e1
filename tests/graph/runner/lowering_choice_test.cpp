// Which lowering of a hosted program a key runs in.

#include <gtest/gtest.h>

#include <memory>

#include "worker/runner/hosted_program.h"

namespace refrain::tests {
namespace {

using worker::BatchDescriptor;
using worker::Lowering;

class LoweringChoice : public ::testing::Test {
 protected:
  LoweringChoice() {
    hosted_.few_tokens = 4;
    hosted_.few = std::make_unique<Lowering>();
    hosted_.few_decode = std::make_unique<Lowering>();
    hosted_.takes_some = [](int32_t rows) { return rows <= 128; };
    hosted_.some = std::make_unique<Lowering>();
    hosted_.some_decode_tokens = 15;
    hosted_.some_decode = std::make_unique<Lowering>();
  }
  const Lowering* of(int32_t tokens, int32_t reqs, bool uniform) const {
    return &hosted_.lowering(BatchDescriptor{tokens, reqs, uniform, false});
  }

  worker::HostedProgram hosted_;
};

TEST_F(LoweringChoice, FollowsFromRowsAndWhetherEachRequestHasOneToken) {
  for (const int32_t rows : {1, 4}) EXPECT_EQ(of(rows, rows, true), hosted_.few_decode.get());
  for (const int32_t rows : {5, 15}) EXPECT_EQ(of(rows, rows, true), hosted_.some_decode.get());
  for (const int32_t rows : {16, 128}) EXPECT_EQ(of(rows, rows, true), hosted_.some.get());
  EXPECT_EQ(of(129, 129, true), &hosted_);
  EXPECT_EQ(of(4, 1, true), hosted_.few.get()) << "one request of four tokens";
  EXPECT_EQ(of(4, 4, false), hosted_.few.get()) << "a prompt may be among them";
  EXPECT_EQ(of(8, 2, true), hosted_.some.get());
  EXPECT_EQ(of(8, 8, false), hosted_.some.get());
}

TEST_F(LoweringChoice, WithoutOneForSomeDecodesIsTheOneForSomeRows) {
  hosted_.some_decode.reset();
  hosted_.some_decode_tokens = 0;
  for (const int32_t rows : {5, 15}) EXPECT_EQ(of(rows, rows, true), hosted_.some.get());
}

}  // namespace
}  // namespace refrain::tests
