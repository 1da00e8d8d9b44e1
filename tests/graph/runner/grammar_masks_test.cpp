// Masks that follow the answers of slots' requests.

#include "worker/runner/grammar_masks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <latch>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/text/tokenizer.h"

namespace refrain::worker {
namespace {

constexpr TokenId kEnd = 0;

class GrammarMasksTest : public testing::Test {
 protected:
  GrammarMasksTest()
      : tokenizer_(*text::Tokenizer::load(kModel)),
        vocab_size_(static_cast<int64_t>(tokenizer_.vocab_size())),
        masks_(kModel, vocab_size_, {kEnd}, 3, 2, kLong) {}

  void set_up(SlotId slot, std::string_view grammar, ipc::SlotSetup setup = {}) {
    setup.slot = slot;
    setup.grammar.assign(grammar.begin(), grammar.end());
    masks_.set_up(setup);
  }
  TokenId token(const char* text) const { return tokenizer_.encode(text, false)->front(); }
  using FollowerPtr = std::shared_ptr<GrammarMasks::Follower>;
  // For the follower, after those of `taken` took their tokens.
  std::vector<uint32_t> mask(const FollowerPtr& follower,
                             std::vector<GrammarMasks::Taken> taken = {},
                             std::vector<uint32_t> bounds = {}, bool may_end = false) {
    GrammarMasks::Row row{.follower = follower, .bounds = std::move(bounds), .may_end = may_end};
    std::vector<uint32_t> bits(static_cast<size_t>(vocab_size_ + 31) / 32, 0xaaaaaaaau);
    uint32_t ready = 0;
    row.mask = bits.data();
    row.ready = &ready;
    masks_.post(std::move(taken), ++turn_, {std::move(row)});
    while (__atomic_load_n(&ready, __ATOMIC_ACQUIRE) != turn_) std::this_thread::yield();
    return bits;
  }
  static bool allows(const std::vector<uint32_t>& mask, TokenId token) {
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
  }

  static constexpr Duration kLong = std::chrono::minutes(10);  // no pause of a machine is as long
  static constexpr const char* kModel = "tests/fixtures/models/llama-bias-f32";
  text::Tokenizer tokenizer_;
  int64_t vocab_size_;
  GrammarMasks masks_;
  uint32_t turn_ = 0;
};

TEST_F(GrammarMasksTest, FollowsTheTokensOfItsSlot) {
  set_up(0, "regex:ab");
  const auto first = mask(masks_.follower(0));
  EXPECT_TRUE(allows(first, token("a")));
  EXPECT_FALSE(allows(first, token("b")));
  const auto second = mask(masks_.follower(0), {{masks_.follower(0), {token("a")}}});
  EXPECT_TRUE(allows(second, token("b")));
  EXPECT_FALSE(allows(second, token("a")));
}

// A step of the request before is still in flight when the slot's next one is set up.
TEST_F(GrammarMasksTest, TokensOfTheRequestBeforeAreNotTheNextOnes) {
  set_up(0, "regex:ab");
  const auto before = masks_.follower(0);
  set_up(0, "regex:ac");
  const auto next = mask(masks_.follower(0), {{before, {token("a")}}});
  EXPECT_TRUE(allows(next, token("a")));
  set_up(0, "");
  EXPECT_FALSE(masks_.constrains(0));
}

TEST_F(GrammarMasksTest, ATokenOutsideOfTheGrammarLeavesNone) {
  set_up(1, "regex:ab");
  for (const TokenId wrong : {token("b"), ipc::kNoFiniteLogit}) {
    const auto none = mask(masks_.follower(1), {{masks_.follower(1), {wrong}}});
    EXPECT_EQ(none, std::vector<uint32_t>(none.size(), 0u));
    set_up(1, "regex:ab");
  }
}

// Slots' masks are made by several threads: each has its own tokens whatever the others take.
TEST_F(GrammarMasksTest, SlotsFollowTheirOwnTokensSideBySide) {
  const std::array<const char*, 3> grammars = {"regex:(ab)+", "regex:(ab)+", "regex:(aab)+"};
  const std::array<std::string, 3> texts = {"abababab", "abababab", "aabaabaa"};
  for (SlotId slot = 0; slot < 3; ++slot) set_up(slot, grammars[static_cast<size_t>(slot)]);
  const auto words = static_cast<size_t>(vocab_size_ + 31) / 32;
  std::vector<std::vector<uint32_t>> bits(3, std::vector<uint32_t>(words));
  std::array<uint32_t, 3> ready{};
  for (size_t step = 0; step < 8; ++step) {
    std::vector<GrammarMasks::Taken> taken;
    std::vector<GrammarMasks::Row> rows;
    for (SlotId slot = 0; slot < 3; ++slot) {
      const auto at = static_cast<size_t>(slot);
      const auto& follower = masks_.follower(slot);
      if (step > 0)
        taken.push_back({follower, {token(std::string(1, texts[at][step - 1]).c_str())}});
      rows.push_back({.follower = follower, .mask = bits[at].data(), .ready = &ready[at]});
    }
    masks_.post(std::move(taken), ++turn_, std::move(rows));
    for (size_t slot = 0; slot < 3; ++slot) {
      while (__atomic_load_n(&ready[slot], __ATOMIC_ACQUIRE) != turn_) std::this_thread::yield();
      const char next = texts[slot][step];
      EXPECT_TRUE(allows(bits[slot], token(std::string(1, next).c_str()))) << slot << ' ' << step;
      EXPECT_FALSE(allows(bits[slot], token(next == 'a' ? "b" : "a"))) << slot << ' ' << step;
    }
  }
}

// A reasoning ends with "x" and then, wherever, "yz".
TEST_F(GrammarMasksTest, BeginsBehindTheReasoning) {
  ipc::SlotSetup setup;
  setup.reasoning_end = {token("x"), -1, token("y"), token("z")};
  const std::vector<TokenId> all = {token("b"), token("x"), token("y"), token("q"),
                                    token("y"), token("z"), token("a")};
  set_up(0, "regex:ab", setup);
  const auto follower = masks_.follower(0);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(allows(mask(follower, {}), token("b"))) << i;
    EXPECT_TRUE(allows(mask(follower, {}), kEnd)) << i;
    mask(follower, {{follower, {all[i]}}});
  }
  EXPECT_TRUE(allows(mask(follower), token("a")));
  EXPECT_FALSE(allows(mask(follower), token("b")));
  // After a preemption, within the reasoning and behind it.
  for (const size_t known : {1, 5, 6, 7}) {
    setup.output_tokens.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(known));
    set_up(1, "regex:ab", setup);
    const auto again = mask(masks_.follower(1));
    EXPECT_EQ(allows(again, token("q")), known < 6) << known;
    EXPECT_EQ(allows(again, token("a")), known < 7) << known;
  }
}

TEST_F(GrammarMasksTest, AnAnswerMayReasonOrNot) {
  ipc::SlotSetup setup;
  setup.reasoning_begin = token("x");
  setup.reasoning_end = {token("y")};
  for (const bool reasons : {true, false}) {
    set_up(0, "regex:ab", setup);
    const auto follower = masks_.follower(0);
    const auto first = mask(follower);
    EXPECT_TRUE(allows(first, token("a")) && allows(first, token("x")));
    EXPECT_FALSE(allows(first, token("b")));
    if (reasons) {
      EXPECT_TRUE(allows(mask(follower, {{follower, {token("x"), token("q")}}}), kEnd));
    }
    const auto last = mask(follower, {{follower, {token(reasons ? "y" : "a")}}});
    EXPECT_EQ(allows(last, token("a")), reasons);
    EXPECT_EQ(allows(last, token("b")), !reasons);
    EXPECT_FALSE(allows(last, token("x")));
  }
}

// A row that verifies has a mask behind each draft; its drafts are the text that the grammar
// forces, as the tokenizer writes it, and a token that is none of them ends that.
TEST_F(GrammarMasksTest, ForcedTextIsDrafted) {
  constexpr size_t kDrafts = 3;
  const auto words = static_cast<size_t>(vocab_size_ + 31) / 32;
  std::vector<uint32_t> bits((1 + kDrafts) * words), ready(1 + kDrafts);
  std::vector<TokenId> drafts(kDrafts);
  uint32_t drafts_ready = 0;
  const auto verify = [&](const FollowerPtr& follower, std::vector<TokenId> taken) {
    masks_.post({{follower, std::move(taken)}}, ++turn_,
                {{.follower = follower,
                  .num_logits = 1 + kDrafts,
                  .mask = bits.data(),
                  .ready = ready.data(),
                  .drafts = drafts.data(),
                  .drafts_ready = &drafts_ready}});
    for (const uint32_t* flag : {&drafts_ready, &ready[0], &ready[1], &ready[2], &ready[3]})
      while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != turn_) std::this_thread::yield();
  };
  const auto allowed = [&](size_t at, TokenId token) {
    return allows({bits.begin() + static_cast<ptrdiff_t>(at * words),
                   bits.begin() + static_cast<ptrdiff_t>((at + 1) * words)},
                  token);
  };
  const std::string text = "zebra crossing";
  const std::vector<TokenId> tokens = *tokenizer_.encode(text, false);
  ASSERT_GT(tokens.size(), kDrafts + 1);
  set_up(0, "regex:[ab](" + text + "|zq)?", {});
  set_up(1, "regex:[ab]" + text, {});
  const auto choice = masks_.follower(0), forced = masks_.follower(1);
  verify(choice, {});
  EXPECT_EQ(drafts, std::vector<TokenId>(kDrafts, -1));
  EXPECT_TRUE(allowed(0, token("a")));
  EXPECT_FALSE(allowed(0, token("z")));
  verify(forced, {token("a")});
  EXPECT_EQ(drafts, std::vector<TokenId>(tokens.begin(), tokens.begin() + kDrafts));
  for (size_t i = 0; i <= kDrafts; ++i) {
    EXPECT_TRUE(allowed(i, tokens[i])) << i;
    EXPECT_FALSE(allowed(i, token("a"))) << i;
  }
  // One of them was right and what the model said then is another cut of the same text.
  const std::string rest = text.substr(tokenizer_.decode({&tokens[0], 1}, false).size());
  const TokenId other = token(rest.substr(0, 1).c_str());
  verify(forced, {tokens[0], other});
  ASSERT_EQ(drafts.front(), tokenizer_.encode(rest.substr(1), false)->front());
  EXPECT_TRUE(allowed(0, drafts.front()));
}

// Its request ends by that; others go on.
TEST_F(GrammarMasksTest, AMaskThatIsNotMadeInTimeIsGivenUpAlone) {
  for (const SlotId slot : {0, 1}) set_up(slot, "regex:ab");
  const auto stuck = masks_.follower(0), other = masks_.follower(1);
  EXPECT_TRUE(allows(mask(stuck), token("a")));
  stuck->strand = PatientStrands(1, kLong).make_held();  // its tasks do not begin
  std::vector<uint32_t> bits(static_cast<size_t>(vocab_size_ + 31) / 32, ~0u);
  uint32_t ready = 0;
  masks_.post({}, ++turn_, {{.follower = stuck, .mask = bits.data(), .ready = &ready}});
  const TimePoint now = steady_clock().now();
  masks_.give_up_overdue(now + kLong);  // it has not begun: once more
  masks_.give_up_overdue(now + 3 * kLong);
  EXPECT_TRUE(stuck->given_up());
  EXPECT_NE(ready, 0u);
  EXPECT_EQ(bits, std::vector<uint32_t>(bits.size(), 0u));
  EXPECT_EQ(mask(stuck), bits) << "and so are those that it is asked for after that";
  EXPECT_TRUE(allows(mask(other), token("a")));
  EXPECT_FALSE(other->given_up());
}

// "0|[a-z]{1}x|[a-z]{2}x|…": takes a while.
std::string slow_grammar(int which) {
  std::string source = "regex:" + std::to_string(which);
  for (int i = 1; i < 150; ++i) source += "|[a-z]{" + std::to_string(i) + "}x";
  return source;
}

TEST_F(GrammarMasksTest, ASlotWithAKnownGrammarWaitsForNoOtherOne) {
  set_up(0, "regex:ab");
  mask(masks_.follower(0));
  // Masks that came while a slow one was compiled; once more where this thread had no processor.
  constexpr int kMany = 20;
  int most = 0;
  for (int turn = 0; turn < 5 && most < kMany; ++turn) {
    std::promise<void> slow;
    masks_.compile_ahead(slow_grammar(turn), [&] { slow.set_value(); });
    const auto done = slow.get_future();
    int masks = 0;
    for (; done.wait_for(std::chrono::seconds(0)) == std::future_status::timeout; ++masks) {
      set_up(1, "regex:ab");
      EXPECT_TRUE(allows(mask(masks_.follower(1)), token("a")));
    }
    most = std::max(most, masks);
  }
  EXPECT_GE(most, kMany);
}

TEST_F(GrammarMasksTest, AFewThreadsCompileAllThatWait) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto before = threads();
  constexpr int kMany = 200;
  std::latch all(kMany + 2);
  for (int i = 0; i < 2; ++i) masks_.compile_ahead(slow_grammar(i), [&] { all.count_down(); });
  for (int i = 0; i < kMany; ++i)
    masks_.compile_ahead("regex:a{" + std::to_string(i + 1) + "}", [&] { all.count_down(); });
  EXPECT_LT(threads() - before, 20);
  all.wait();
}

// What is not compiled yet when the masks go is not waited for.
TEST_F(GrammarMasksTest, WhatWaitsForItsTurnIsForgottenAtTheEnd) {
  std::atomic<int> done = 0;
  {
    GrammarMasks masks(kModel, vocab_size_, {kEnd}, 1, 1, kLong);
    for (int i = 0; i < 10; ++i) masks.compile_ahead(slow_grammar(i), [&] { ++done; });
  }
  EXPECT_LT(done, 10);
}

TEST_F(GrammarMasksTest, BoundsForbidTokensButNotTheEndOfACompleteAnswer) {
  set_up(0, "regex:[ab]");
  std::vector<uint32_t> bounds(static_cast<size_t>(vocab_size_ + 31) / 32, ~0u);
  for (const TokenId token : {token("a"), kEnd})
    bounds[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
  const auto follower = masks_.follower(0);
  const auto first = mask(follower, {}, bounds, true);
  EXPECT_TRUE(allows(first, token("b")));
  EXPECT_FALSE(allows(first, token("a")));
  const auto last = mask(follower, {{follower, {token("b")}}}, bounds, true);
  EXPECT_TRUE(allows(last, kEnd));
  const auto never = mask(follower, {}, bounds);
  EXPECT_FALSE(allows(never, kEnd));
}

}  // namespace
}  // namespace refrain::worker
