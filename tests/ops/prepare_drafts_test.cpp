// Speculation: prepare_inputs of rows that verify and of chunks that continue.
#include <cstring>

#include "tests/ops/drafts.h"

namespace refrain::kernels {
namespace {

// prepare_inputs with speculation: a slot's first tokens, rows that verify, logit rows.
class PrepareDraftsTest : public DraftsTest {
 protected:
  static constexpr int32_t kTokens = 14, kReqs = 5, kSamples = 9, kBlockSize = 4, kBlocks = 8;

  void SetUp() override {
    DraftsTest::SetUp();
    if (IsSkipped()) return;
    set_history({{1, 2, 3, 4, 5}, {}, {9, 9}, {6}}, {0, 0, 0, 2});
    Ints table((kSlots + 1) * kBlocks);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i) + 1;
    slots_.last_token = harness().put(Ints{5, 41, 9, 6, 44});
    args_.num_paged = 1;
    args_.max_blocks = kBlocks;
    args_.paged[0] = {harness().put(table), harness().fresh<int64_t>(kTokens)};
    slots_.params = harness().put(std::vector<SlotParams>(kSlots + 1));
    slots_.output_count = harness().put(Ints((kSlots + 1) * 50, 0));
    slots_.in_prompt = harness().put(std::vector<uint8_t>((kSlots + 1) * 50, 0));
    args_.slots = slots_;
    BatchInputs& in = args_.inputs;
    in.turn = harness().put(std::vector<uint32_t>{3});
    for (int32_t** one : {&in.live_tokens, &in.live_reqs, &in.live_logits, &in.live_samples})
      *one = harness().fresh<int32_t>(1);
    in.token_ids = harness().fresh<int32_t>(kTokens);
    in.positions = harness().fresh<int32_t>(kTokens);
    in.query_start = harness().fresh<int32_t>(kReqs + 1);
    in.sample_start = harness().fresh<int32_t>(kReqs + 1);
    in.seq_lens = harness().fresh<int32_t>(kReqs);
    in.row_slot = harness().fresh<int32_t>(kReqs);
    in.row_flags = harness().fresh<uint8_t>(kReqs);
    in.logit_index = harness().fresh<int32_t>(kSamples);
    in.sample_slot = harness().fresh<int32_t>(kSamples);
    in.sample_lens = harness().fresh<int32_t>(kSamples);
    in.sample_flags = harness().fresh<uint8_t>(kSamples);
    args_.layout = make_step_layout(32, 8, 16, 32);
    args_.block_size = kBlockSize;
    args_.tokens = kTokens;
    args_.reqs = kReqs;
    args_.samples = kSamples;
  }

  PrepareInputsArgs args_;
};

TEST_P(PrepareDraftsTest, RowsThatVerifyBeginWhereTheirSlotIsAndEveryTokenGivesLogits_CG39) {
  std::vector<uint8_t> block(args_.layout.total, 0xff);
  const StepLayout& l = args_.layout;
  const auto put = [&block](size_t at, const auto& value) {
    std::memcpy(block.data() + at, &value, sizeof(value));
  };
  const auto put_ints = [&](size_t at, const Ints& values) {
    for (size_t i = 0; i < values.size(); ++i) put(at + 4 * i, values[i]);
  };
  StepHeader header;
  header.turn = 4;
  header.num_reqs = 3;
  header.num_tokens = 3 + 2 + 3;
  header.num_slot_updates = 2;
  header.num_history = 4;
  put(l.header, header);
  put_ints(l.row_slot, {0, 1, 3});
  put_ints(l.row_query_len, {3, 2, 3});
  put_ints(l.row_context, {-1, 6, 0});
  for (const auto& [row, flags] :
       {std::pair{0, kVerify}, {1, uint8_t{kRowSamples}}, {2, uint8_t{kRowContinues}}})
    put(l.row_flags + static_cast<size_t>(row), flags);
  const int32_t d = kTokenOnDevice;
  put_ints(l.token_ids, {d, d, d, 24, 25, 26, 27, 28});
  put_ints(l.params_slot, {3, 1});
  put(l.params, SlotParams{});
  put(l.params + sizeof(SlotParams), SlotParams{});
  put_ints(l.history_part, {0, 0, 2, 4});  // slot 3 begins anew; slot 1 knows positions 2 to 5
  put_ints(l.history, {20, 21, 22, 23});
  put_ints(l.row_next, {-8, -8, 29});
  args_.blocks[0] = harness().put(block);
  args_.blocks[1] = harness().fresh<uint8_t>(l.total);
  args_.block_copy = harness().fresh<uint8_t>(l.total);
  table().prepare_inputs(stream(), args_);
  const auto ints = [this](const int32_t* from, size_t count) {
    return harness().get(from, count);
  };
  const BatchInputs& in = args_.inputs;
  EXPECT_EQ(ints(in.live_samples, 1), Ints{5});
  EXPECT_EQ(ints(in.live_logits, 1), Ints{5}) << "temperature 1";
  EXPECT_EQ(ints(in.token_ids, kTokens), (Ints{5, d, d, 24, 25, 26, 27, 28, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(ints(in.positions, 8), (Ints{4, 5, 6, 6, 7, 0, 1, 2}));
  EXPECT_EQ(harness().get(args_.paged[0].kv_slots, 4), (std::vector<int64_t>{8, 9, 10, 42}));
  EXPECT_EQ(ints(in.seq_lens, 3), (Ints{7, 8, 3}));
  EXPECT_EQ(ints(in.sample_start, kReqs + 1), (Ints{0, 3, 4, 5, 5, 5}));
  EXPECT_EQ(ints(in.sample_slot, kSamples), (Ints{0, 0, 0, 1, 3, kSlots, kSlots, kSlots, kSlots}));
  EXPECT_EQ(ints(in.sample_lens, 5), (Ints{5, 6, 7, 8, 3}));
  EXPECT_EQ(ints(in.logit_index, kSamples), (Ints{0, 1, 2, 4, 7, 0, 0, 0, 0}));
  EXPECT_EQ(
      harness().get(in.sample_flags, kSamples),
      (std::vector<uint8_t>{kVerify, kVerify, kVerify, kRowSamples, kRowContinues, 0, 0, 0, 0}));
  EXPECT_EQ(ints(slots_.history_range, 8), (Ints{0, 5, 2, 8, 0, 2, 0, 3}));
  const Ints history = ints(slots_.history, 4 * kCols);
  EXPECT_EQ(Ints(history.begin() + kCols + 2, history.begin() + kCols + 9),
            (Ints{20, 21, 22, 23, 24, 25, -5}));
  EXPECT_EQ(Ints(history.begin() + 3 * kCols, history.begin() + 3 * kCols + 5),
            (Ints{26, 27, 28, 29, -5}))
      << "and the token after a row that continues, which is not part of it yet";
}

INSTANTIATE_TEST_SUITE_P(Device, PrepareDraftsTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
