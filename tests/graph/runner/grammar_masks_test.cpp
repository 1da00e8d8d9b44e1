// Masks that follow the answers of slots' requests.

#include "worker/runner/grammar_masks.h"

#include <gtest/gtest.h>

#include <array>
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
        masks_(kModel, vocab_size_, {kEnd}, 3, 2) {}

  void set_up(SlotId slot, std::string_view grammar) {
    ipc::SlotSetup setup;
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
    GrammarMasks::Row row{follower, std::move(bounds), may_end, nullptr, nullptr};
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
      rows.push_back({follower, {}, false, bits[at].data(), &ready[at]});
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
