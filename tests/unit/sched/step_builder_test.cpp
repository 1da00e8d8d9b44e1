#include "runtime/sched/step_builder.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/sched/parts.h"

namespace refrain {
namespace {

using testing::Parts;

TEST(StepBuilder, RowsBringTheirSetupBlocksAndTokens) {
  Parts parts;
  Sequence& sequence = parts.add_running(1, 10);
  parts.begin();
  EXPECT_TRUE(parts.step.empty());
  parts.step.add_row(sequence, 6);
  const ipc::Step& step = parts.step.plan().step();
  ASSERT_EQ(step.setups.size(), 1u);
  EXPECT_EQ(step.setups[0].slot, sequence.slot);
  EXPECT_EQ(step.blocks[0].index, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(parts.rows().token_ids,
            std::vector<TokenId>(sequence.tokens.begin(), sequence.tokens.begin() + 6));
  EXPECT_EQ(parts.rows().flags[0] & ipc::kSamples, 0);
  const PlannedStep planned = parts.step.finish({});
  ASSERT_EQ(planned.rows.size(), 1u);
  EXPECT_EQ(planned.rows[0].computed, 6);
  EXPECT_EQ(planned.rows[0].most, 0);
  EXPECT_EQ(sequence.num_scheduled, 6);
  EXPECT_EQ(sequence.in_flight, 1);

  parts.begin();
  parts.step.add_row(sequence, 4);
  EXPECT_TRUE(parts.step.plan().step().setups.empty());
  EXPECT_NE(parts.rows().flags[0] & ipc::kSamples, 0);
  EXPECT_EQ(parts.step.finish({}).rows[0].least, 1);
  EXPECT_EQ(sequence.pending, 1);
}

TEST(StepBuilder, StepsAreNumberedAndSayWhatTheirRowsAre) {
  Parts parts;
  Sequence& decodes = parts.add_decoding(1, 8);
  Sequence& prompt = parts.add_running(2, 8);
  ASSERT_TRUE(parts.resources.pools().ensure(decodes, 12));
  parts.begin();
  parts.step.add_decode(decodes);
  EXPECT_EQ(parts.step.finish({}).step, 1u);
  EXPECT_EQ(parts.step.plan().step().runs[0].mode, ipc::ForwardMode::kDecode);
  parts.begin();
  parts.step.add_decode(decodes);
  parts.step.add_row(prompt, 8);
  EXPECT_EQ(parts.step.finish({{0, 7}}).step, 2u);
  EXPECT_EQ(parts.step.plan().step().runs[0].mode, ipc::ForwardMode::kMixed);
  EXPECT_EQ(parts.step.plan().step().placements.size(), 1u);
}

TEST(StepBuilder, ARowThatVerifiesIsPlannedByTheLeastAndHasRoomForTheMost) {
  SchedulerOptions options = testing::small_options();
  options.num_drafts = 3;
  Parts parts(options);
  Sequence& sequence = parts.add_decoding(1, 8);
  ASSERT_TRUE(parts.resources.pools().ensure(sequence, 20));
  parts.begin(4);
  parts.step.add_verification(sequence, 12);
  EXPECT_EQ(parts.rows().computed[0], 8);
  EXPECT_EQ(parts.rows().num_tokens[0], 4);
  EXPECT_EQ(parts.step.finish({}).rows[0].most, 4);
  EXPECT_EQ(sequence.num_scheduled, 9);
  EXPECT_EQ(sequence.pending, 1);
  EXPECT_EQ(sequence.pending_most, 4);
  parts.begin(4);  // how many were right is not known yet
  parts.step.add_verification(sequence, 16);
  EXPECT_EQ(parts.rows().computed[0], ipc::kComputedOnDevice);
}

TEST(StepBuilder, TokensOfPromptsCountFromTheDecodesOn) {
  Parts parts;
  Sequence& decodes = parts.add_decoding(1, 8);
  Sequence& prompt = parts.add_running(2, 12);
  ASSERT_TRUE(parts.resources.pools().ensure(decodes, 12));
  parts.step.limit_chunks({10});
  parts.begin();
  parts.step.add_decode(decodes);
  parts.step.begin_chunks();
  EXPECT_EQ(parts.step.budget_left(), 15);
  EXPECT_EQ(parts.step.chunk_budget_left(), 10);
  parts.step.add_row(prompt, 8);
  EXPECT_EQ(parts.step.chunk_budget_left(), 2);
  EXPECT_EQ(parts.step.room_for(prompt, 8, 4), 4);
}

TEST(StepBuilder, LongPromptsHaveALimitOfTheirOwnWhereOthersDecode) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  for (const int32_t parts_of_a_prompt : {1, 2}) {
    SchedulerOptions options = testing::small_options();
    options.split_prefill = parts_of_a_prompt;
    Parts parts(options);
    Sequence& decodes = parts.add_decoding(1, 8);
    Sequence& prompt = parts.add_running(2, 12);
    prompt.long_prompt = true;
    ASSERT_TRUE(parts.resources.pools().ensure(decodes, 12));
    parts.step.limit_chunks({.step = 10, .long_beside_decodes = 6});
    parts.begin();
    parts.step.begin_chunks();
    EXPECT_EQ(parts.step.long_limit_left(), kNone) << "nobody decodes";
    parts.begin();
    parts.step.add_decode(decodes);
    parts.step.begin_chunks();
    EXPECT_EQ(parts.step.long_limit_left(), parts_of_a_prompt == 1 ? 6 : kNone);
    parts.step.add_row(prompt, 4);
    EXPECT_EQ(parts.step.long_limit_left(), parts_of_a_prompt == 1 ? 2 : kNone);
    EXPECT_EQ(parts.step.chunk_budget_left(), 6);
  }
}

TEST(StepBuilder, RowsAreAsLongAsTheStepsBytesAllow_R23) {
  SchedulerOptions options = testing::small_options();
  options.max_num_batched_tokens = 64;
  options.max_step_bytes = 400;
  Parts parts(options);
  Sequence& prompt = parts.add_running(1, 60);
  parts.begin();
  EXPECT_FALSE(parts.step.half_full());
  EXPECT_LT(parts.step.room_for(prompt, 0, 60), 60);
  while (const int32_t room = parts.step.room_for(prompt, prompt.num_scheduled, 60))
    parts.step.add_row(prompt, std::min(room, 60 - prompt.num_scheduled));
  EXPECT_LT(prompt.num_scheduled, 60);
  EXPECT_TRUE(parts.step.half_full());
  std::vector<std::byte> frame;
  ipc::encode_frame(parts.step.plan().step(), {}, frame);
  EXPECT_LE(frame.size(), ipc::kHeaderBytes + options.max_step_bytes);
}

TEST(StepBuilder, AShareOfTheStepsIsAudited_CG41) {
  SchedulerOptions options = testing::small_options();
  options.audit_rate = 0.25;
  Parts parts(options);
  Sequence& sequence = parts.add_running(1, 16);
  int audits = 0;
  for (int i = 0; i < 8; ++i) {
    parts.begin();
    parts.step.add_row(sequence, 1);
    parts.step.finish({});
    audits += parts.step.plan().step().audit;
  }
  EXPECT_EQ(audits, 2);
}

// Three blocks of four tokens, of which the first `shared` are those of the other.
std::unique_ptr<Sequence> holder(BlockManager& manager, const Sequence* other, size_t shared) {
  auto sequence = std::make_unique<Sequence>(1, testing::prompt_of(12), SequenceParams{});
  std::vector<BlockRef>& blocks = sequence->held.emplace_back().blocks;
  for (size_t i = 0; i < 3; ++i)
    blocks.push_back(i < shared ? manager.share(other->held[0].blocks[i].id())
                                : std::move(*manager.allocate()));
  return sequence;
}

TEST(Cascade, APrefixIsReadOnceFromSoManySparedKeysOn_CG13) {
  const Cascade cascade(testing::full_attention(65), 4);  // pays from 8 keys on
  BlockManager manager(16);
  const auto one = holder(manager, nullptr, 0), two = holder(manager, one.get(), 2),
             three = holder(manager, one.get(), 1);
  std::vector<PlannedRow> rows;
  const auto prefix = [&](std::initializer_list<Sequence*> decodes) {
    rows.clear();
    for (Sequence* sequence : decodes) rows.push_back({sequence, 13, 1, 1, 0, 12});
    return cascade.prefix(rows).tokens;
  };
  EXPECT_EQ(prefix({one.get(), two.get()}), 8);
  EXPECT_EQ(prefix({one.get()}), 0);
  EXPECT_EQ(prefix({one.get(), three.get()}), 0);             // four keys are too few
  EXPECT_EQ(prefix({one.get(), two.get(), three.get()}), 4);  // twice four are not
  EXPECT_EQ(cascade.prefix(rows).rows, 3);
  // Chunks of prompts behind the decodes have no part in it, whatever they begin with.
  rows[2] = {three.get(), 12, 0, 0, 0, 8};
  EXPECT_EQ(cascade.prefix(rows).tokens, 8);
  EXPECT_EQ(cascade.prefix(rows).rows, 2);
  rows[1] = {two.get(), 1, 1, 1, 0, 0};  // a prompt of one token
  EXPECT_EQ(cascade.prefix(rows).rows, 0);
  rows[1] = {two.get(), ipc::kComputedOnDevice, 1, 3};  // drafts
  two->num_computed = 12;
  EXPECT_EQ(cascade.prefix(rows).rows, 2);
}

}  // namespace
}  // namespace refrain
