#pragma once
// A rank without a model, for scheduler and engine tests and the simulation: it keeps slots, block
// tables and a paged cache as a worker does, and its next token is a hash of all tokens that it
// finds in the cache, so that a wrong block, position, token or recomputation changes the output.
// A step that no worker could run throws.

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/check.h"

namespace refrain::testing {

// What the mock model says after `tokens`. Token 0 plays eos; about one in `eos_every` is one.
// Requests with another `draw` get other tokens.
inline TokenId next_token(std::span<const TokenId> tokens, uint64_t vocab = 1000,
                          uint64_t eos_every = 0, uint64_t draw = 0) {
  uint64_t hash = 1469598103934665603ULL ^ draw;
  for (const TokenId token : tokens)
    hash = (hash ^ static_cast<uint64_t>(token + 7)) * 1099511628211ULL;
  hash ^= hash >> 29;
  if (eos_every > 0 && hash % eos_every == 0) return 0;
  return static_cast<TokenId>(1 + (hash >> 7) % (vocab - 1));
}

// The same of a request that may not end yet: before its min_tokens an end token gives way.
inline TokenId next_allowed(std::span<const TokenId> tokens, const ipc::SlotSetup& setup,
                            int64_t made, uint64_t vocab, uint64_t eos_every, uint64_t draw) {
  for (uint64_t attempt = 0;; ++attempt) {
    const TokenId token = next_token(tokens, vocab, eos_every, draw ^ (attempt << 40));
    if (made >= setup.min_tokens || std::ranges::count(setup.end_tokens, token) == 0) return token;
  }
}

// What a request's seed does to its tokens, in a mock that draws: it matters when the temperature
// is not 0.
inline uint64_t draw_of(const ipc::SlotSetup& setup) {
  return setup.temperature > 0 ? (setup.seed + 1) * 0x9e3779b97f4a7c15ULL : 0;
}

using Counts = std::map<TokenId, uint64_t>;  // how often each token was generated

// What penalties do: any wrong count gives another token.
inline uint64_t penalty_of(const ipc::SlotSetup& setup, const Counts& generated) {
  uint64_t penalty = 0;
  if (setup.repetition_penalty == 1.0f && setup.presence_penalty == 0.0f &&
      setup.frequency_penalty == 0.0f)
    return penalty;
  for (const auto& [token, count] : generated)
    penalty = (penalty ^ (static_cast<uint64_t>(token) + count * 4096)) * 1099511628211ULL + 1;
  return penalty;
}

// The answer of a request that runs alone.
inline std::vector<TokenId> solo_run(std::vector<TokenId> tokens, size_t max_tokens,
                                     size_t max_model_len, uint64_t vocab, uint64_t eos_every,
                                     const ipc::SlotSetup& setup = {}, bool draws = false) {
  std::vector<TokenId> output;
  Counts generated;
  const uint64_t draw = draws ? draw_of(setup) : 0;
  while (output.size() < max_tokens && tokens.size() < max_model_len) {
    tokens.push_back(next_token(tokens, vocab, eos_every, draw ^ penalty_of(setup, generated)));
    output.push_back(tokens.back());
    ++generated[output.back()];
    if (output.back() == 0) break;
  }
  return output;
}

class MockDevice {
 public:
  MockDevice(int32_t block_size, int64_t num_blocks, uint64_t vocab = 1000, uint64_t eos_every = 0,
             bool draws = false)
      : block_size_(block_size),
        vocab_(vocab),
        eos_every_(eos_every),
        draws_(draws),
        cache_(static_cast<size_t>(num_blocks * block_size), kNothing) {}

  ipc::StepResult run(const ipc::Step& step) {
    for (const ipc::SlotSetup& setup : step.setups)
      slots_[setup.slot] = Slot{setup, {}, kNothing, 0, {}};
    for (size_t i = 0; i < step.block_slot.size(); ++i) {
      Slot& slot = slots_.at(step.block_slot[i]);
      const auto index = static_cast<size_t>(step.block_index[i]);
      REFRAIN_CHECK(slot.table.size() == index, "block tables grow one entry after the other");
      REFRAIN_CHECK(step.block_id[i] != kReservedBlock, "the reserved block was given out");
      slot.table.push_back(step.block_id[i]);
    }
    ipc::StepResult result;
    result.step = step.step;
    result.num_tokens = static_cast<int32_t>(step.token_ids.size());
    size_t token = 0;
    for (size_t row = 0; row < step.row_slot.size(); ++row) {
      Slot& slot = slots_.at(step.row_slot[row]);
      const auto count = static_cast<size_t>(step.row_num_tokens[row]);
      write(slot, step.row_computed[row], std::span(step.token_ids).subspan(token, count));
      token += count;
      const bool samples = (step.row_flags[row] & ipc::kSamples) != 0;
      if (samples) {
        slot.last = sample(slot, step.row_computed[row] + static_cast<int32_t>(count));
        ++slot.generated[slot.last];
      }
      result.tokens.push_back(samples ? slot.last : -1);
    }
    return result;
  }

 private:
  static constexpr TokenId kNothing = -7;
  struct Slot {
    ipc::SlotSetup setup;
    std::vector<BlockId> table;
    TokenId last = kNothing;
    int32_t seen = 0;  // of a request with a repetition penalty: tokens that passed by
    Counts generated;  // sampled here, or fed again at positions beyond the prompt
  };

  TokenId& at(Slot& slot, int32_t position) {
    const BlockId block = slot.table.at(static_cast<size_t>(position / block_size_));
    return cache_.at(static_cast<size_t>(block * block_size_ + position % block_size_));
  }
  void write(Slot& slot, int32_t position, std::span<const TokenId> tokens) {
    if (slot.setup.repetition_penalty != 1.0f) {
      REFRAIN_CHECK(slot.seen == position, "a penalised request must show the device every token");
      slot.seen += static_cast<int32_t>(tokens.size());
    }
    for (const TokenId token : tokens) {
      if (token != kTokenOnDevice && position >= slot.setup.prompt_len) ++slot.generated[token];
      at(slot, position++) = token == kTokenOnDevice ? slot.last : token;
    }
  }
  TokenId sample(Slot& slot, int32_t length) {
    std::vector<TokenId> tokens;
    for (int32_t position = 0; position < length; ++position) tokens.push_back(at(slot, position));
    const uint64_t draw = draws_ ? draw_of(slot.setup) : 0;
    return next_allowed(tokens, slot.setup, length - slot.setup.prompt_len, vocab_, eos_every_,
                        draw ^ penalty_of(slot.setup, slot.generated));
  }

  int32_t block_size_;
  uint64_t vocab_;
  uint64_t eos_every_;
  bool draws_;
  std::vector<TokenId> cache_;
  std::map<SlotId, Slot> slots_;
};

}  // namespace refrain::testing
