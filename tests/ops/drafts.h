#pragma once
// What tests of speculation have: slots that know some tokens, rows that verify.

#include <algorithm>
#include <vector>

#include "runtime/base/ids.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {

using Ints = std::vector<int32_t>;

inline constexpr int32_t kSlots = 4, kCols = 40;
inline constexpr uint8_t kVerify = kRowSamples | kRowVerifies;

struct DraftRow {
  int32_t slot = 0;
  int32_t tokens = 1;
  uint8_t flags = kVerify;
};

class DraftsTest : public OpsTest {
 protected:
  // Slot s knows the tokens known[s], from position begin[s] on.
  void set_history(const std::vector<Ints>& known, const Ints& begin) {
    Ints history((kSlots + 1) * kCols, -5), range((kSlots + 1) * 2, 0);
    for (size_t slot = 0; slot < known.size(); ++slot) {
      std::copy(known[slot].begin(), known[slot].end(),
                history.begin() + static_cast<int>(slot) * kCols + begin[slot]);
      range[slot * 2] = begin[slot];
      range[slot * 2 + 1] = begin[slot] + static_cast<int32_t>(known[slot].size());
    }
    slots_.num_slots = kSlots;
    slots_.vocab_size = 50;
    slots_.history_cols = kCols;
    slots_.history = harness().put(history);
    slots_.history_range = harness().put(range);
  }
  // [R] of these rows and one padded; the batch's rows are harness memory.
  void set_rows(const std::vector<DraftRow>& rows) {
    Ints start = {0}, slot, samples = {0};
    std::vector<uint8_t> flags;
    for (const DraftRow& row : rows) {
      start.push_back(start.back() + row.tokens);
      slot.push_back(row.slot);
      flags.push_back(row.flags);
      samples.push_back(samples.back() + ((row.flags & kRowVerifies) != 0 ? row.tokens : 1));
    }
    start.push_back(start.back());
    samples.push_back(samples.back());
    slot.push_back(kSlots);
    flags.push_back(0);
    live_ = static_cast<int32_t>(rows.size());
    tokens_ = start.back();
    inputs_.query_start = harness().put(start);
    inputs_.row_slot = harness().put(slot);
    inputs_.row_flags = harness().put(flags);
    inputs_.sample_start = harness().put(samples);
    inputs_.turn = harness().put(std::vector<uint32_t>{8});
    rows_ = {live_ + 1, harness().put(Ints{live_})};
  }
  struct Proposed {
    Ints ids, drafts;
    bool operator==(const Proposed&) const = default;
  };
  Proposed propose(const Ints& ids, int32_t least, int32_t most) {
    ProposeNgramArgs args;
    set_batch(args, ids);
    args.slots = slots_;
    args.slots.params = harness().put(params_);
    args.most_drafts = kForced;
    args.least = least;
    args.most = most;
    table().propose_ngram(stream(), args);
    return proposed(args);
  }
  // Of drafts that another Program left in the slots.
  Proposed propose_kept(const Ints& ids, const Ints& drafts, const Ints& draft_token) {
    ProposeDraftsArgs args;
    set_batch(args, ids);
    args.drafts = harness().put(drafts);
    args.draft_token = harness().put(draft_token);
    args.most = kForced;
    args.params = harness().put(params_);
    table().propose_drafts(stream(), args);
    return proposed(args);
  }
  template <class Args>
  void set_batch(Args& args, Ints ids) {
    const int32_t padded = tokens_ + 3;
    ids.resize(static_cast<size_t>(padded), 0);
    args.ids = harness().put(ids);
    args.out = harness().fresh<int32_t>(static_cast<size_t>(padded));
    args.num_drafts = harness().fresh<int32_t>(static_cast<size_t>(rows_.padded));
    args.inputs = inputs_;
    set_grammar(args.grammar);
    args.tokens = {padded, harness().put(Ints{tokens_})};
    args.rows = rows_;
  }
  template <class Args>
  Proposed proposed(const Args& args) {
    const Ints out = harness().get(args.out, static_cast<size_t>(args.tokens.padded));
    EXPECT_TRUE(std::all_of(out.begin() + tokens_, out.end(), [](int32_t id) { return id == 0; }))
        << "padded tokens are 0";
    return {Ints(out.begin(), out.begin() + tokens_),
            harness().get(args.num_drafts, static_cast<size_t>(live_))};
  }

  // What the host has made of the rows' grammars for this turn.
  void set_grammar(GrammarDraftInputs (&grammar)[kTurns]) {
    const auto padded = static_cast<size_t>(rows_.padded);
    forced_.resize(padded * kForced, -1);
    for (uint32_t turn = 0; turn < kTurns; ++turn)
      grammar[turn] = {harness().put(turn == 8 % kTurns ? forced_ : Ints(forced_.size(), 99)),
                       harness().put(std::vector<uint32_t>(padded, 8))};
  }

  static constexpr int32_t kForced = 3;  // drafts of a row at most
  std::vector<SlotParams> params_ = std::vector<SlotParams>(kSlots + 1);
  Ints forced_;  // [R, kForced]
  BatchInputs inputs_;
  SlotState slots_;
  int32_t live_ = 0, tokens_ = 0;
  Rows rows_;
};

}  // namespace refrain::kernels
