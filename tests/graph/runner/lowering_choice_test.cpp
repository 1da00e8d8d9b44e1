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
    add(few_decode_, 4, true);
    add(some_decode_, 15, true);
    add(few_, 4, false);
    add(some_, 256, false);
    some_->takes = [](int32_t rows) { return rows <= 128 || rows > 224; };
  }
  void add(worker::KeyLowering*& form, int32_t rows, bool decode) {
    hosted_.for_keys.push_back(std::make_unique<worker::KeyLowering>());
    form = hosted_.for_keys.back().get();
    form->rows = rows;
    form->decode = decode;
  }
  const Lowering* of(int32_t tokens, int32_t reqs, bool uniform) const {
    return &hosted_.lowering(BatchDescriptor{tokens, reqs, uniform, false});
  }

  worker::HostedProgram hosted_;
  worker::KeyLowering *few_decode_ = nullptr, *some_decode_ = nullptr, *few_ = nullptr,
                      *some_ = nullptr;
};

TEST_F(LoweringChoice, FollowsFromRowsAndWhetherEachRequestHasOneToken) {
  for (const int32_t rows : {1, 4}) EXPECT_EQ(of(rows, rows, true), few_decode_);
  for (const int32_t rows : {5, 15}) EXPECT_EQ(of(rows, rows, true), some_decode_);
  for (const int32_t rows : {16, 128, 225, 256}) EXPECT_EQ(of(rows, rows, true), some_);
  for (const int32_t rows : {129, 224, 257}) EXPECT_EQ(of(rows, rows, true), &hosted_);
  EXPECT_EQ(of(4, 1, true), few_) << "one request of four tokens";
  EXPECT_EQ(of(4, 4, false), few_) << "a prompt may be among them";
  EXPECT_EQ(of(8, 2, true), some_);
  EXPECT_EQ(of(8, 8, false), some_);
}

TEST_F(LoweringChoice, BatchesWithAdaptersHaveTheirOwnInEveryContext) {
  worker::KeyLowering* some_lora = nullptr;
  add(some_lora, 80, false);
  some_lora->lora = true;
  hosted_.lora = std::make_unique<Lowering>();
  const auto second = worker::for_another_context(hosted_);
  for (const worker::HostedProgram* hosted : {&hosted_, second.get()}) {
    const auto with_adapters = [&](int32_t rows) {
      return &hosted->lowering(BatchDescriptor{rows, rows, true, true});
    };
    for (const int32_t rows : {1, 5, 80})
      EXPECT_EQ(with_adapters(rows), hosted->for_keys.back().get()) << rows;
    EXPECT_EQ(with_adapters(81), hosted->lora.get());
    EXPECT_EQ(&hosted->lowering(BatchDescriptor{80, 80, true, false}), hosted->for_keys[3].get());
  }
}

TEST_F(LoweringChoice, WithoutFormsIsThePlainOne) {
  hosted_.for_keys.clear();
  for (const int32_t rows : {1, 5, 128}) EXPECT_EQ(of(rows, rows, true), &hosted_);
}

}  // namespace
}  // namespace refrain::tests
