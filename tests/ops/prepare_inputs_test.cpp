// prepare_inputs: the step block becomes batch inputs; slots' tables, parameters and history.
#include <array>
#include <cstring>

#include "runtime/base/ids.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr int32_t kGroups = 2, kSlots = 4, kMaxBlocks = 6, kVocab = 50, kBlockSize = 4;

struct Row {
  int32_t slot = 0;
  int32_t context = 0;
  std::vector<int32_t> tokens;
  uint8_t flags = 0;
};

struct Step {
  std::vector<Row> rows = {};
  using Updates = std::vector<std::array<int32_t, 3>>;  // slot, index, block
  Updates block_updates = {};                           // of the first group
  std::vector<std::pair<int32_t, SlotParams>> params = {};
  int32_t keep_logits = 0;
  Updates more_updates = {};  // of the second one
};

class PrepareInputsTest : public OpsTest {
 protected:
  static constexpr int32_t kTokens = 12, kReqs = 5;

  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    SlotState& s = args_.slots;
    s.num_slots = kSlots;
    s.vocab_size = kVocab;
    s.last_token = harness().put(std::vector<int32_t>{40, 41, 42, 43, 44});
    s.params = harness().put(std::vector<SlotParams>(kSlots + 1));
    s.output_count = harness().put(std::vector<int32_t>((kSlots + 1) * kVocab, 9));
    s.in_prompt = harness().put(std::vector<uint8_t>((kSlots + 1) * kVocab, 1));
    BatchInputs& in = args_.inputs;
    in.turn = harness().put(std::vector<uint32_t>{turn_});
    in.live_tokens = harness().fresh<int32_t>(1);
    in.live_reqs = harness().fresh<int32_t>(1);
    in.live_logits = harness().fresh<int32_t>(1);
    in.token_ids = harness().fresh<int32_t>(kTokens);
    in.positions = harness().fresh<int32_t>(kTokens);
    in.query_start = harness().fresh<int32_t>(kReqs + 1);
    in.seq_lens = harness().fresh<int32_t>(kReqs);
    in.row_slot = harness().fresh<int32_t>(kReqs);
    in.logit_index = harness().fresh<int32_t>(kReqs);
    in.row_flags = harness().fresh<uint8_t>(kReqs);
    args_.num_paged = kGroups;
    args_.max_blocks = kMaxBlocks;
    for (int32_t group = 0; group < kGroups; ++group) {
      args_.paged[group] = {harness().put(std::vector<int32_t>((kSlots + 1) * kMaxBlocks, 0)),
                            harness().fresh<int64_t>(kTokens)};
    }
    args_.layout = make_step_layout(32, 8, 16);
    args_.block_size = kBlockSize;
    args_.padded_seq_len = 1;
  }

  void run(const Step& step, int32_t tokens = kTokens, int32_t reqs = kReqs) {
    std::vector<uint8_t> block(args_.layout.total, 0xff);
    const auto put = [&block](size_t at, const auto& value) {
      std::memcpy(block.data() + at, &value, sizeof(value));
    };
    StepHeader header;
    header.num_reqs = static_cast<int32_t>(step.rows.size());
    const StepLayout& l = args_.layout;
    for (size_t r = 0; r < step.rows.size(); ++r) {
      const Row& row = step.rows[r];
      put(l.row_slot + r * 4, row.slot);
      put(l.row_query_len + r * 4, static_cast<int32_t>(row.tokens.size()));
      put(l.row_context + r * 4, row.context);
      put(l.row_flags + r, row.flags);
      for (const int32_t token : row.tokens) put(l.token_ids + 4 * header.num_tokens++, token);
    }
    int32_t updates = 0;
    const auto put_updates = [&](const Step::Updates& of_group, int32_t& count) {
      count = static_cast<int32_t>(of_group.size());
      for (const auto& [slot, index, id] : of_group) {
        put(l.update_slot + 4 * updates, slot);
        put(l.update_index + 4 * updates, index);
        put(l.update_block + 4 * updates++, id);
      }
    };
    put_updates(step.block_updates, header.num_block_updates[0]);
    put_updates(step.more_updates, header.num_block_updates[1]);
    for (const auto& [slot, params] : step.params) {
      put(l.params_slot + 4 * header.num_slot_updates, slot);
      put(l.params + sizeof(SlotParams) * header.num_slot_updates++, params);
    }
    header.turn = ++turn_;
    header.keep_logits = step.keep_logits;
    put(l.header, header);
    args_.blocks[turn_ % kTurns] = harness().put(block);
    args_.blocks[(turn_ + 1) % kTurns] = harness().fresh<uint8_t>(l.total);  // not this turn's
    args_.block_copy = harness().fresh<uint8_t>(l.total);
    args_.tokens = tokens;
    args_.reqs = reqs;
    table().prepare_inputs(stream(), args_);
    EXPECT_EQ(harness().get(args_.inputs.turn, 1)[0], turn_);
  }

  template <class T>
  std::vector<T> got(const T* device, size_t count) {
    return harness().get(device, count);
  }
  using Ints = std::vector<int32_t>;

  PrepareInputsArgs args_;
  uint32_t turn_ = 6;
};

TEST_P(PrepareInputsTest, FillsTokensRowsAndPadding) {
  run({.rows = {{2, 5, {kTokenOnDevice}, kRowSamples}, {0, 3, {7, 8, 9}, 0}},
       .block_updates = {{2, 0, 11}, {2, 1, 5}, {0, 0, 3}, {0, 1, 8}}});
  const BatchInputs& in = args_.inputs;
  EXPECT_EQ(got(in.live_tokens, 1), Ints({4}));
  EXPECT_EQ(got(in.live_reqs, 1), Ints({2}));
  EXPECT_EQ(got(in.token_ids, kTokens), Ints({42, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(got(in.positions, kTokens), Ints({5, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(got(args_.paged[0].kv_slots, kTokens),
            std::vector<int64_t>({21, 15, 32, 33, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(got(in.query_start, kReqs + 1), Ints({0, 1, 4, 4, 4, 4}));
  EXPECT_EQ(got(in.seq_lens, kReqs), Ints({6, 6, 1, 1, 1}));
  EXPECT_EQ(got(in.row_slot, kReqs), Ints({2, 0, kSlots, kSlots, kSlots}));
  EXPECT_EQ(got(in.logit_index, kReqs), Ints({0, 3, 0, 0, 0}));
  EXPECT_EQ(got(in.row_flags, kReqs), std::vector<uint8_t>({kRowSamples, 0, 0, 0, 0}));
}

TEST_P(PrepareInputsTest, LogitsAreLiveWhereARowThatSamplesIsNotPlainlyGreedy) {
  const SlotParams greedy{.temperature = 0}, drawn{.temperature = 1};
  const auto live = [this](const Step& step) {
    run(step);
    return got(args_.inputs.live_logits, 1)[0];
  };
  EXPECT_EQ(live({.rows = {{0, 0, {4}, kRowSamples}, {1, 0, {5}, kRowSamples}},
                  .params = {{0, greedy}, {1, greedy}, {2, drawn}}}),
            0);
  EXPECT_EQ(live({.rows = {{0, 1, {4}, kRowSamples}, {2, 0, {5, 6}, 0}}}), 0)
      << "it does not sample";
  EXPECT_EQ(live({.rows = {{0, 2, {4}, kRowSamples}, {2, 2, {5}, kRowSamples}, {1, 1, {4}, 0}}}),
            3);
  EXPECT_EQ(live({.rows = {{0, 3, {4}, kRowSamples}}}), 0) << "from step to step";
  EXPECT_EQ(live({.rows = {{0, 4, {4}, kRowSamples}}, .keep_logits = 1}), 1);
}

TEST_P(PrepareInputsTest, KeepsBlockTablesFromStepToStep) {
  run({.rows = {{1, 0, {4, 5}, 0}}, .block_updates = {{1, 0, 9}}});
  run({.rows = {{1, 2, {6, 7, 8}, 0}}, .block_updates = {{1, 1, 2}}});
  const auto slots = got(args_.paged[0].kv_slots, 3);
  EXPECT_EQ(slots, std::vector<int64_t>({38, 39, 8}));
}

TEST_P(PrepareInputsTest, EveryGroupHasABlockTableOfItsOwn) {
  run({.rows = {{1, 2, {6, 7, 8}, 0}, {3, 0, {5}, 0}},
       .block_updates = {{1, 0, 9}, {1, 1, 2}, {3, 0, 4}},
       .more_updates = {{1, 1, 7}, {3, 0, 1}}});
  EXPECT_EQ(got(args_.paged[0].kv_slots, 4), std::vector<int64_t>({38, 39, 8, 16}));
  // What the second group gave back of slot 1 is not there: the reserved block.
  EXPECT_EQ(got(args_.paged[1].kv_slots, 4), std::vector<int64_t>({2, 3, 28, 4}));
  EXPECT_EQ(got(args_.paged[1].block_table + kMaxBlocks, 2), Ints({0, 7}));
  EXPECT_EQ(got(args_.paged[1].kv_slots, kTokens)[4], 0) << "padding goes to the reserved block";
}

TEST_P(PrepareInputsTest, ResetsHistoryWithNewParametersThenRecordsFedTokens) {
  SlotParams params;
  params.uses_history = 1;
  params.prompt_len = 3;
  params.top_k = 17;
  // A request fed again after preemption: three prompt tokens, then outputs 9 and 9 and 20.
  run({.rows = {{1, 0, {5, 6, 5, 9, 9, 20}, 0}}, .params = {{1, params}}});
  Ints count(kVocab, 0);
  std::vector<uint8_t> prompt(kVocab, 0);
  prompt[5] = prompt[6] = 1;
  count[9] = 2;
  count[20] = 1;
  EXPECT_EQ(got(args_.slots.output_count + kVocab, kVocab), count);
  EXPECT_EQ(got(args_.slots.in_prompt + kVocab, kVocab), prompt);
  EXPECT_EQ(got(args_.slots.params + 1, 1)[0].top_k, 17);
  EXPECT_EQ(got(args_.slots.output_count, kVocab), Ints(kVocab, 9)) << "another slot's";

  run({.rows = {{1, 6, {kTokenOnDevice}, kRowSamples}}});  // counted when it was sampled
  EXPECT_EQ(got(args_.slots.output_count + kVocab, kVocab), count);
}

TEST_P(PrepareInputsTest, LeavesHistoryAloneWhenNoPenaltyIsOn) {
  run({.rows = {{1, 0, {5}, 0}}, .params = {{1, SlotParams{}}}});
  EXPECT_EQ(got(args_.slots.output_count, (kSlots + 1) * kVocab), Ints((kSlots + 1) * kVocab, 9));
  args_.slots.output_count = nullptr;
  args_.slots.in_prompt = nullptr;
  SlotParams params;
  params.uses_history = 1;
  run({.rows = {{1, 0, {5}, 0}}, .params = {{1, params}}});  // no history buffers: no write
  EXPECT_EQ(got(args_.inputs.token_ids, 1), Ints({5}));
}

TEST_P(PrepareInputsTest, WritesNothingPastThePaddedCounts) {
  run({.rows = {{0, 0, {1}, 0}}, .block_updates = {{0, 0, 1}}}, 2, 2);
  EXPECT_EQ(got(args_.inputs.token_ids, kTokens)[2], -1);
  EXPECT_EQ(got(args_.paged[0].kv_slots, kTokens)[2], -1);
  EXPECT_EQ(got(args_.inputs.seq_lens, kReqs)[2], -1);
  EXPECT_EQ(got(args_.inputs.query_start, kReqs + 1)[3], -1);
}

// More tokens and rows than one block of threads takes, some rows without tokens.
TEST_P(PrepareInputsTest, FillsManyTokensAndRows) {
  constexpr int32_t kManyTokens = 1500, kManyReqs = 600, kLive = 550;
  BatchInputs& in = args_.inputs;
  in.token_ids = harness().fresh<int32_t>(kManyTokens);
  in.positions = harness().fresh<int32_t>(kManyTokens);
  args_.num_paged = 1;
  args_.paged[0].kv_slots = harness().fresh<int64_t>(kManyTokens);
  in.query_start = harness().fresh<int32_t>(kManyReqs + 1);
  in.seq_lens = harness().fresh<int32_t>(kManyReqs);
  in.row_slot = harness().fresh<int32_t>(kManyReqs);
  in.logit_index = harness().fresh<int32_t>(kManyReqs);
  in.row_flags = harness().fresh<uint8_t>(kManyReqs);
  args_.layout = make_step_layout(2048, 640, 32);
  Step step;
  Ints table;  // of slots 1 to 4; slot 0's stays 0
  for (int32_t i = 0; i < kSlots * kMaxBlocks; ++i) {
    table.push_back(100 + i);
    step.block_updates.push_back({1 + i / kMaxBlocks, i % kMaxBlocks, table.back()});
  }
  SlotParams params;
  params.top_k = 5;
  step.params = {{3, params}};
  Ints ids, positions, starts = {0}, lengths;
  for (int32_t r = 0; r < kLive; ++r) {
    Row row{r % kSlots, r % 7, {}, 0};
    for (int32_t i = 0; i < r % 5; ++i) {
      row.tokens.push_back((r * 3 + i) % kVocab);
      ids.push_back(row.tokens.back());
      positions.push_back(row.context + i);
    }
    starts.push_back(static_cast<int32_t>(ids.size()));
    lengths.push_back(row.context + r % 5);
    step.rows.push_back(row);
  }
  run(step, kManyTokens, kManyReqs);
  ids.resize(kManyTokens, 0);
  positions.resize(kManyTokens, 0);
  starts.resize(kManyReqs + 1, starts.back());
  lengths.resize(kManyReqs, 1);
  EXPECT_EQ(got(in.token_ids, kManyTokens), ids);
  EXPECT_EQ(got(in.positions, kManyTokens), positions);
  EXPECT_EQ(got(in.query_start, kManyReqs + 1), starts);
  EXPECT_EQ(got(in.seq_lens, kManyReqs), lengths);
  EXPECT_EQ(got(args_.paged[0].block_table, kMaxBlocks), Ints(kMaxBlocks, 0));
  EXPECT_EQ(got(args_.paged[0].block_table + kMaxBlocks, table.size()), table);
  EXPECT_EQ(got(args_.slots.params + 3, 1)[0].top_k, 5);
}

// Turn after turn from the same two blocks; a block that is not of the turn shows in inputs.turn.
TEST_P(PrepareInputsTest, TakesTheBlocksInTurns) {
  const auto block_of = [this](uint32_t turn, int32_t token) {
    std::vector<uint8_t> block(args_.layout.total);
    const StepHeader header{.num_tokens = 1, .num_reqs = 1, .turn = turn};
    std::memcpy(block.data() + args_.layout.header, &header, sizeof header);
    std::memcpy(block.data() + args_.layout.token_ids, &token, sizeof token);
    const int32_t length = 1;
    std::memcpy(block.data() + args_.layout.row_query_len, &length, sizeof length);
    return harness().put(block);
  };
  args_.blocks[0] = block_of(8, 10);
  args_.blocks[1] = block_of(7, 20);
  args_.block_copy = harness().fresh<uint8_t>(args_.layout.total);
  args_.tokens = args_.reqs = 1;
  for (const auto& [turn, token] : {std::pair{7, 20}, {8, 10}, {7, 20}}) {
    table().prepare_inputs(stream(), args_);
    EXPECT_EQ(got(args_.inputs.turn, 1)[0], static_cast<uint32_t>(turn));
    EXPECT_EQ(got(args_.inputs.token_ids, 1), Ints({token}));
  }
}

INSTANTIATE_TEST_SUITE_P(Device, PrepareInputsTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
