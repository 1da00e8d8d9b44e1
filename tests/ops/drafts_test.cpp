// Speculation: propose_ngram, propose_drafts, draft_inputs, accept_drafts. Against what is said of
// them in kernels/core/op_args.h, written down plainly.
#include "tests/ops/drafts.h"

#include <algorithm>
#include <numeric>

namespace refrain::kernels {
namespace {

TEST_P(DraftsTest, ProposeNgramTakesWhatFollowedTheLongestAndThenTheLatestOccurrence_CG40) {
  const int32_t d = kTokenOnDevice;
  set_history({{1, 2, 3, 7, 8, 2, 3, 9, 9, 2, 3}, {5, 6, 5, 6, 5}, {4, 4, 1}}, {0, 3, 0});
  set_rows({{0, 4}, {1, 5}, {2, 3}, {3, 1, kVerify}, {0, 2, kRowSamples}});
  // 2 3 came before 9 9 last; 5 6 5 overlaps its own end and goes on; 1 was never there.
  EXPECT_EQ(propose({3, d, d, d, 5, d, d, d, d, 1, d, d, 6, 20, 21}, 1, 3),
            (Proposed{{3, 9, 9, 2, 5, 6, 5, 6, 5, 1, 1, 1, 6, 20, 21}, {3, 4, 0, 0, 0}}));
  // Of three tokens there is an earlier occurrence in slot 1 alone.
  EXPECT_EQ(propose({3, d, d, d, 5, d, d, d, d, 1, d, d, 6, 20, 21}, 3, 3).drafts,
            (Ints{0, 4, 0, 0, 0}));
}

TEST_P(DraftsTest, ProposeNgramGivesFillersToARowThatTakesNoDrafts_CG35) {
  set_history({{1, 2, 1, 2}}, {0});
  set_rows({{0, 3, kVerify | kRowNoDrafts}});
  EXPECT_EQ(propose({2, kTokenOnDevice, kTokenOnDevice}, 1, 2), (Proposed{{2, 2, 2}, {0}}));
}

// What slot s holds before `begin` is another request's.
TEST_P(DraftsTest, ProposeNgramEqualsAPlainSearch_CG40) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const auto below = [&random](uint32_t n) { return static_cast<int32_t>(random() % n); };
    const int32_t least = 1 + below(3), most = least + below(3), count = 1 + below(6);
    std::vector<Ints> known(kSlots);
    Ints begin(kSlots), ids, expected;
    std::vector<DraftRow> rows;
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      Ints& tokens = known[static_cast<size_t>(slot)];
      begin[static_cast<size_t>(slot)] = below(4);
      for (int32_t i = 1 + below(30); i > 0; --i) tokens.push_back(below(3));
      rows.push_back({slot, 1 + count});
      int32_t best = 0, from = -1;
      const auto size = static_cast<int32_t>(tokens.size());
      for (int32_t at = 1; at < size; ++at) {
        int32_t length = 0;
        while (length < most && length < at && tokens[at - 1 - length] == tokens[size - 1 - length])
          ++length;
        if (length >= least && length >= best) best = length, from = at;
      }
      Ints all = tokens;
      for (int32_t i = 0; i < count; ++i)
        all.push_back(from < 0 ? tokens.back() : all[static_cast<size_t>(from + i)]);
      ids.push_back(tokens.back());
      ids.resize(ids.size() + static_cast<size_t>(count), kTokenOnDevice);
      expected.insert(expected.end(), all.begin() + size - 1, all.end());
    }
    set_history(known, begin);
    set_rows(rows);
    EXPECT_EQ(propose(ids, least, most).ids, expected) << "round " << round;
  }
}

TEST_P(DraftsTest, ProposeDraftsTakesWhatADraftModelLeftInTheSlots_CG40) {
  const int32_t d = kTokenOnDevice;
  // A row with drafts, one whose second draft is none, one that takes none, one of a token, a
  // chunk.
  set_rows({{2, 4}, {0, 4}, {1, 4, kVerify | kRowNoDrafts}, {3, 1}, {3, 2, kRowSamples}});
  EXPECT_EQ(
      propose_kept({9, d, d, d, 8, d, d, d, 7, d, d, d, 6, 5, 4},
                   {10, -1, 0, 20, 21, 0, 30, 31, 0, 40, 41, 0, 0, 0, 0}, {12, 22, 32, 42, 0}),
      (Proposed{{9, 30, 31, 32, 8, 10, 8, 8, 7, 7, 7, 7, 6, 5, 4}, {3, 1, 0, 0, 0}}));
}

// Of such rows the host makes the drafts; one that takes none does not wait for them.
TEST_P(DraftsTest, WhatAGrammarForcesIsDraftedInsteadOfAllElse_CG40) {
  const int32_t d = kTokenOnDevice;
  set_history({{5, 6, 5}, {5, 6, 5}, {5, 6, 5}, {5, 6, 5}}, {0, 0, 0, 0});
  for (const size_t slot : {0, 1, 2}) params_[slot].follows_grammar = 1;
  set_rows({{0, 4}, {1, 4}, {2, 4, kVerify | kRowNoDrafts}, {3, 4}});
  forced_ = {7, 8, -1, -1, 9, 9, 7, 8, 9, 7, 8, 9};
  const Ints ids = {5, d, d, d, 5, d, d, d, 5, d, d, d, 5, d, d, d};
  EXPECT_EQ(propose(ids, 1, 1),
            (Proposed{{5, 7, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 5, 6}, {2, 0, 0, 3}}));
  EXPECT_EQ(propose_kept(ids, Ints((kSlots + 1) * kForced, 30), Ints(kSlots + 1, 31)),
            (Proposed{{5, 7, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 30, 30, 31}, {2, 0, 0, 3}}));
}

TEST_P(DraftsTest, DraftInputsGoOnFromTheSlotsLastToken_CG40) {
  constexpr int32_t kBlocks = 3, kSize = 4, kMost = 3, kFill = 1;
  set_history({{1, 2, 3}, {4}, {5, 6}, Ints(11, 7)}, {0, 4, 0, 0});
  // One that goes on, one with penalties, one that does not sample, one that reaches the end of its
  // block table.
  set_rows({{0, 2}, {1, 1}, {2, 2, 0}, {3, 1, kRowSamples}});
  std::vector<SlotParams> params(kSlots + 1);
  params[1].uses_history = 1;
  Ints blocks((kSlots + 1) * kBlocks);
  std::iota(blocks.begin(), blocks.end(), 20);
  for (const int32_t ahead : {0, 1, 2}) {
    const auto reqs = static_cast<size_t>(rows_.padded);
    DraftInputsArgs args;
    args.token = harness().put(Ints{33, 34, 35, 36, 0});
    args.history_range = slots_.history_range;
    args.params = harness().put(params);
    args.block_table = harness().put(blocks);
    args.drafts = harness().put(Ints((kSlots + 1) * kMost, -7));
    args.num_slots = kSlots;
    args.max_blocks = kBlocks;
    args.most = kMost;
    args.row_slot = inputs_.row_slot;
    args.row_flags = inputs_.row_flags;
    args.step_live_logits = harness().put(Ints{1});
    args.out = {harness().fresh<int32_t>(reqs), harness().fresh<int32_t>(reqs),
                harness().fresh<int64_t>(reqs), harness().fresh<int32_t>(reqs + 1),
                harness().fresh<int32_t>(reqs), harness().fresh<int32_t>(reqs),
                harness().fresh<uint8_t>(reqs), harness().fresh<int32_t>(1)};
    args.ahead = ahead;
    args.block_size = kSize;
    args.padded_seq_len = kFill;
    args.rows = rows_;
    table().draft_inputs(stream(), args);
    const bool fits = 10 + ahead < kBlocks * kSize;  // of the last row
    {
      const DraftInputsArgs::Out& out = args.out;
      EXPECT_EQ(harness().get(out.token_ids, reqs), (Ints{33, 0, 0, fits ? 36 : 0, 0}));
      EXPECT_EQ(harness().get(out.positions, reqs),
                (Ints{2 + ahead, 0, 0, fits ? 10 + ahead : 0, 0}));
      EXPECT_EQ(harness().get(out.seq_lens, reqs),
                (Ints{3 + ahead, kFill, kFill, fits ? 11 + ahead : kFill, kFill}));
      EXPECT_EQ(harness().get(out.row_slot, reqs),
                (Ints{0, kSlots, kSlots, fits ? 3 : kSlots, kSlots}));
      const uint8_t samples = kRowSamples, flags = fits ? samples : 0;
      EXPECT_EQ(harness().get(out.row_flags, reqs),
                (std::vector<uint8_t>{samples, 0, 0, flags, 0}));
      EXPECT_EQ(harness().get(out.query_start, reqs + 1), (Ints{0, 1, 2, 3, 4, 4}));
      EXPECT_EQ(harness().get(out.live_logits, 1), Ints{4});
      const int64_t first = ahead < 2 ? 20 * kSize + 2 + ahead : 21 * kSize;
      const int64_t last = fits ? 31 * kSize + 2 + ahead : 0;
      EXPECT_EQ(harness().get(out.kv_slots, reqs), (std::vector<int64_t>{first, 0, 0, last, 0}));
    }
    Ints kept((kSlots + 1) * kMost, -7);
    if (ahead > 0)
      for (const int32_t slot : {0, 1, 3})
        kept[static_cast<size_t>(slot * kMost + ahead - 1)] = 33 + slot;
    EXPECT_EQ(harness().get(args.drafts, kept.size()), kept);
  }
}

// A head's place is that of the token before, whose hidden state it finds in the step: of a prompt
// its last one, of a row that verifies the one before the last that was kept.
TEST_P(DraftsTest, DraftInputsOfAHeadStandOnePlaceBefore_CG40) {
  constexpr int32_t kBlocks = 3, kSize = 4, kMost = 3, kFill = 1;
  set_history({{1, 2, 3}, {4, 5, 6, 7, 8, 9}, {5}, {1}}, {0, 0, 0, 0});
  set_rows({{0, 2}, {1, 4}, {2, 1, 0}});
  const auto reqs = static_cast<size_t>(rows_.padded);
  for (const int32_t ahead : {0, 1}) {
    DraftInputsArgs args;
    args.token = harness().put(Ints{33, 34, 35, 36, 0});
    args.history_range = slots_.history_range;
    args.params = harness().put(std::vector<SlotParams>(kSlots + 1));
    args.block_table = harness().put(Ints((kSlots + 1) * kBlocks, 2));
    args.drafts = harness().put(Ints((kSlots + 1) * kMost, -7));
    args.num_slots = kSlots;
    args.max_blocks = kBlocks;
    args.most = kMost;
    args.row_slot = inputs_.row_slot;
    args.row_flags = inputs_.row_flags;
    args.step_live_logits = harness().put(Ints{1});
    args.positions = harness().put(Ints{0, 1, 2, 3, 4, 5, 0});
    args.query_start = inputs_.query_start;
    args.out = {harness().fresh<int32_t>(reqs), harness().fresh<int32_t>(reqs),
                harness().fresh<int64_t>(reqs), harness().fresh<int32_t>(reqs + 1),
                harness().fresh<int32_t>(reqs), harness().fresh<int32_t>(reqs),
                harness().fresh<uint8_t>(reqs), harness().fresh<int32_t>(1),
                harness().fresh<int32_t>(reqs), harness().fresh<int32_t>(reqs)};
    args.ahead = ahead;
    args.back = 1;
    args.block_size = kSize;
    args.padded_seq_len = kFill;
    args.rows = rows_;
    table().draft_inputs(stream(), args);
    const DraftInputsArgs::Out& out = args.out;
    EXPECT_EQ(harness().get(out.positions, reqs), (Ints{1 + ahead, 4 + ahead, 0, 0}));
    EXPECT_EQ(harness().get(out.seq_lens, reqs), (Ints{2 + ahead, 5 + ahead, kFill, kFill}));
    EXPECT_EQ(harness().get(out.kv_slots, reqs),
              (std::vector<int64_t>{8 + 1 + ahead, 8 + ahead, 0, 0}));
    EXPECT_EQ(harness().get(out.sample_lens, reqs), (Ints{3 + ahead, 6 + ahead, kFill, kFill}))
        << "as the model draws";
    EXPECT_EQ(harness().get(out.hidden_index, reqs), (Ints{1, 4, 0, 0}));
  }
}

TEST_P(DraftsTest, AcceptDraftsKeepsTheRightOnesAndTheTokenAfterThem_CG40) {
  set_history({{1, 2}, {3}, {4, 5, 6}, {7}}, {0, 0, 0, 0});
  // All right; none right; none proposed though one is right; a prompt's end; one without a token.
  set_rows({{0, 3}, {1, 3}, {2, 2}, {3, 4, kRowSamples}, {kSlots, 2, 0}});
  std::vector<SlotParams> params(kSlots + 1);
  params[2].uses_history = 1;
  slots_.params = harness().put(params);
  slots_.last_token = harness().put(Ints(kSlots + 1, 0));
  slots_.output_count = harness().put(Ints((kSlots + 1) * 50, 0));
  AcceptDraftsArgs args;
  args.inputs = inputs_;
  args.slots = slots_;
  args.rows = rows_;
  args.ids = harness().put(Ints{2, 30, 31, 3, 40, 41, 6, 45, 7, 8, 9, 10, 1, 2});
  args.num_drafts = harness().put(Ints{2, 2, 0, 0, 0, 0});
  args.tokens[0] = harness().put(Ints{30, 31, 32, 39, 41, 42, 45, 46, 20, -1});
  for (AcceptOutputs& out : args.outputs)
    out = {harness().fresh<int32_t>(6), harness().fresh<int32_t>(6)};
  args.tokens[1] = harness().fresh<int32_t>(10);  // of the other turn
  table().accept_drafts(stream(), args);
  EXPECT_EQ(harness().get(args.outputs[0].accepted, 6), (Ints{3, 1, 1, 1, 0, 0}));
  EXPECT_EQ(harness().get(args.outputs[0].drafted, 6), (Ints{2, 2, 0, 0, 0, 0}));
  EXPECT_EQ(harness().get(slots_.last_token, kSlots), (Ints{32, 39, 45, 20}));
  const Ints range = harness().get(slots_.history_range, 2 * kSlots);
  EXPECT_EQ(range, (Ints{0, 5, 0, 2, 0, 4, 0, 2}));
  const Ints history = harness().get(slots_.history, kSlots * kCols);
  EXPECT_EQ(Ints(history.begin(), history.begin() + 6), (Ints{1, 2, 30, 31, 32, -5}));
  EXPECT_EQ(history[kCols + 1], 39);
  const Ints counts = harness().get(slots_.output_count, kSlots * 50);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 1) << "penalties of slot 2 alone";
  EXPECT_EQ(counts[2 * 50 + 45], 1);
}

// Every draft is wrong by what it says; a known share of them counts all the same, alike on all
// devices and ranks.
TEST_P(DraftsTest, AcceptDraftsByChanceKeepsTheShareThatIsAskedFor) {
  constexpr int32_t kDrafts = 20;
  for (const int64_t chance : {int64_t{0}, int64_t{3} << 30, int64_t{15} << 28, int64_t{1} << 32}) {
    int32_t right = 0;
    while (right < kDrafts && right_by_chance(chance, 0, 2 + right)) ++right;
    set_history({{1, 2}}, {0});
    set_rows({{0, 1 + kDrafts}});
    slots_.params = harness().put(std::vector<SlotParams>(kSlots + 1));
    slots_.last_token = harness().put(Ints(kSlots + 1, 0));
    AcceptDraftsArgs args;
    args.synthetic = chance;
    args.inputs = inputs_;
    args.slots = slots_;
    args.rows = rows_;
    args.ids = harness().put(Ints(1 + kDrafts, 5));
    args.num_drafts = harness().put(Ints{kDrafts, 0});
    args.tokens[0] = harness().put(Ints(1 + kDrafts, 9));
    args.outputs[0] = {harness().fresh<int32_t>(2), harness().fresh<int32_t>(2)};
    table().accept_drafts(stream(), args);
    EXPECT_EQ(harness().get(args.outputs[0].accepted, 1), Ints{1 + right});
    EXPECT_EQ(harness().get(args.outputs[0].drafted, 1), Ints{kDrafts});
  }
  int kept = 0;
  for (int32_t position = 0; position < 10000; ++position)
    kept += right_by_chance(int64_t{3} << 30, position % 7, position);
  EXPECT_NEAR(kept, 7500, 150);
}

// A slot that is full takes no more: captures run with slots that nobody set up.
TEST_P(DraftsTest, AcceptDraftsStaysWithinTheHistory) {
  set_history({Ints(kCols, 1)}, {0});
  set_rows({{0, 1}});
  slots_.params = harness().put(std::vector<SlotParams>(kSlots + 1));
  slots_.last_token = harness().put(Ints(kSlots + 1, 0));
  AcceptDraftsArgs args;
  args.inputs = inputs_;
  args.slots = slots_;
  args.rows = rows_;
  args.ids = harness().put(Ints{1});
  args.num_drafts = harness().put(Ints{0, 0});
  args.tokens[0] = harness().put(Ints{9});
  args.outputs[0] = {harness().fresh<int32_t>(2), harness().fresh<int32_t>(2)};
  table().accept_drafts(stream(), args);
  EXPECT_EQ(harness().get(slots_.history_range, 2), (Ints{0, kCols}));
  EXPECT_EQ(harness().get(slots_.history, kCols + 1)[kCols], -5);
  EXPECT_EQ(harness().get(slots_.last_token, 1), Ints{9});
}

INSTANTIATE_TEST_SUITE_P(Device, DraftsTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
