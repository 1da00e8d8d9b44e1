#pragma once
// A rank without a model, for scheduler and engine tests and the simulation: it keeps slots, block
// tables and paged caches as a worker does, and its next token is a hash of all tokens that it
// finds in the cache, so that a wrong block, position, token or recomputation changes the output.
// A step that no worker could run throws.

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "ipc/protocol/state_blocks.h"
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

// What a LoRA adapter does to them; 0: none.
inline uint64_t draw_of(AdapterId adapter) {
  return static_cast<uint64_t>(adapter) * 0xd6e8feb86659fd93ULL;
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
                                     const ipc::SlotSetup& setup = {}, bool draws = false,
                                     AdapterId adapter = 0) {
  std::vector<TokenId> output;
  Counts generated;
  const uint64_t draw = (draws ? draw_of(setup) : 0) ^ draw_of(adapter);
  while (output.size() < max_tokens && tokens.size() < max_model_len) {
    tokens.push_back(next_allowed(tokens, setup, static_cast<int64_t>(output.size()), vocab,
                                  eos_every, draw ^ penalty_of(setup, generated)));
    output.push_back(tokens.back());
    ++generated[output.back()];
    if (output.back() == 0) break;
  }
  return output;
}

// What dense models have: one group that keeps every token.
inline std::vector<ipc::StateGroup> full_attention(int64_t num_blocks) {
  return {{.name = "full_attention", .bytes = 1024, .num_blocks = num_blocks, .cascade_keys = 8}};
}

class MockDevice {
 public:
  // The first of the state groups keeps every token. `drafts` of a draft model, whose is the last.
  MockDevice(int32_t block_size, std::vector<ipc::StateGroup> groups, uint64_t vocab = 1000,
             uint64_t eos_every = 0, bool draws = false, int32_t drafts = 0)
      : block_size_(block_size),
        groups_(std::move(groups)),
        vocab_(vocab),
        eos_every_(eos_every),
        draws_(draws),
        drafts_(drafts) {
    for (const ipc::StateGroup& group : groups_)
      caches_.emplace_back(static_cast<size_t>(group.num_blocks * block_size), kNothing);
  }

  // What a transfer does: blocks of another rank's caches become this one's.
  void pull(const MockDevice& other, const std::vector<ipc::KvBlocks>& blocks) {
    for (size_t group = 0; group < blocks.size(); ++group)
      for (size_t i = 0; i < blocks[group].from.size(); ++i)
        std::copy_n(other.caches_[group].begin() + blocks[group].from[i] * block_size_, block_size_,
                    caches_[group].begin() + blocks[group].to[i] * block_size_);
  }

  ipc::StepResult run(const ipc::Step& step) {
    for (const ipc::AdapterPlacement& placement : step.placements)
      in_place_[placement.place] = placement.adapter;
    for (const ipc::SlotSetup& setup : step.setups) {
      Slot& slot = slots_[setup.slot] = Slot{};
      slot.setup = setup;
      if (setup.adapter >= 0) slot.adapter = in_place_.at(setup.adapter);
      slot.tables.resize(groups_.size());
    }
    for (size_t group = 0; group < step.blocks.size(); ++group)
      if (paged(group)) write(step.blocks[group], group);
    ipc::StepResult result;
    result.step = step.step;
    result.num_tokens = static_cast<int32_t>(ipc::num_tokens(step));
    const ipc::Run& run = step.runs.front();
    if (run.parts > 1) check_part(step);
    if (!run.ends()) {  // its rows run with the last part
      result.token_offsets.assign(run.rows.slot.size() + 1, 0);
      return result;
    }
    const ipc::Step& brought = run.parts > 1 ? first_part_ : step;
    checkpoints(brought, true);
    REFRAIN_CHECK(step.runs.size() == (drafts_ > 0 ? 2u : 1u), "{} runs", step.runs.size());
    const ipc::Rows& rows = step.runs.front().rows;
    check_adapters(rows, step.has_lora);
    REFRAIN_CHECK(
        step.cascade == (step.shared_prefix > 0) && step.cascade == (step.shared_rows > 1),
        "cascade without a shared prefix");
    for (size_t row = 0; row < rows.slot.size(); ++row)
      slots_.at(rows.slot[row]).shared_prefix =
          std::cmp_less(row, step.shared_rows) ? step.shared_prefix : 0;
    if (step.cascade) shared_ = &slots_.at(rows.slot.at(0));
    run_rows(rows, result);
    for (size_t row = 0; drafts_ > 0 && row < rows.slot.size(); ++row)
      if ((rows.flags[row] & ipc::kSamples) != 0) draft(slots_.at(rows.slot[row]));
    checkpoints(brought, false);
    return result;
  }

  static float score_of(int32_t position, TokenId token) {
    return -static_cast<float>(position * 1000 + token);
  }
  // Tokens of the request in the slot, with the last one.
  int32_t length_of(SlotId slot) const { return slots_.at(slot).length; }

 private:
  // It follows the one before, with its rows; another run of parts may begin at any time.
  void check_part(const ipc::Step& step) {
    const ipc::Run& run = step.runs.front();
    REFRAIN_CHECK(run.part == 0 || run.part == next_part_, "part {} comes where {} is next",
                  run.part, next_part_);
    if (run.part == 0) first_part_ = step;
    const ipc::Rows& first = first_part_.runs.front().rows;
    REFRAIN_CHECK(run.rows.slot == first.slot && run.rows.computed == first.computed &&
                      run.rows.token_ids == first.token_ids,
                  "part {} has other rows", run.part);
    REFRAIN_CHECK(run.part == 0 || (step.setups.empty() && ipc::num_block_updates(step) == 0),
                  "part {} brings setups or blocks", run.part);
    next_part_ = run.ends() ? 0 : run.part + 1;
  }
  // The place of a row's adapter still has it, and the step says whether there is one (CG-15).
  void check_adapters(const ipc::Rows& rows, bool has_lora) {
    bool any = false;
    for (const SlotId id : rows.slot) {
      const Slot& slot = slots_.at(id);
      any = any || slot.adapter != 0;
      REFRAIN_CHECK(slot.adapter == 0 || in_place_.at(slot.setup.adapter) == slot.adapter,
                    "the place of adapter {} was given away while slot {} uses it", slot.adapter,
                    id);
    }
    REFRAIN_CHECK(any == has_lora, "has_lora is {}, adapters there are {}", has_lora, any);
  }
  void run_rows(const ipc::Rows& rows, ipc::StepResult& result) {
    result.token_offsets.push_back(0);
    size_t token = 0, scoring = 0;
    for (size_t row = 0; row < rows.slot.size(); ++row) {
      Slot& slot = slots_.at(rows.slot[row]);
      const auto count = static_cast<size_t>(rows.num_tokens[row]);
      if ((rows.flags[row] & ipc::kScores) != 0)
        score(slot.setup, rows, row, token, rows.next_tokens.at(scoring++), result.prompt);
      if ((rows.flags[row] & ipc::kVerifies) != 0) {
        verify(slot, rows, row, result);
        token += count;
        continue;
      }
      result.drafted.push_back(0);
      write(slot, rows.computed[row], std::span(rows.token_ids).subspan(token, count));
      token += count;
      const bool samples = (rows.flags[row] & ipc::kSamples) != 0;
      if (samples) {
        slot.last = sample(slot, rows.computed[row] + static_cast<int32_t>(count));
        ++slot.generated[slot.last];
      }
      slot.length = rows.computed[row] + rows.num_tokens[row] + (samples ? 1 : 0);
      if (samples) result.tokens.push_back(slot.last);
      result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
    }
  }

  // Each prompt token after the row's first as score_of() says, with itself as the likeliest ones.
  static void score(const ipc::SlotSetup& setup, const ipc::Rows& rows, size_t row, size_t first,
                    TokenId next, ipc::PromptScores& scores) {
    if (scores.top_offsets.empty()) scores.top_offsets.push_back(0);
    const int32_t computed = rows.computed[row], tokens = rows.num_tokens[row];
    for (int32_t i = 0; i < tokens && computed + i + 1 < setup.prompt_len; ++i) {
      const TokenId token =
          i + 1 < tokens ? rows.token_ids[first + static_cast<size_t>(i) + 1] : next;
      scores.logprobs.push_back(score_of(computed + i + 1, token));
      scores.ranks.push_back(token);
      scores.top_tokens.insert(scores.top_tokens.end(),
                               static_cast<size_t>(setup.num_prompt_logprobs), token);
      scores.top_logprobs.resize(scores.top_tokens.size(), scores.logprobs.back());
      scores.top_offsets.push_back(static_cast<int32_t>(scores.top_tokens.size()));
    }
  }

  static constexpr TokenId kNothing = -7;
  struct Slot {
    ipc::SlotSetup setup;
    AdapterId adapter = 0;
    std::vector<std::map<int32_t, BlockId>> tables;  // of each group
    TokenId last = kNothing;
    int32_t length = 0;          // tokens, with the last one
    int32_t seen = 0;            // of a request with a repetition penalty: tokens that passed by
    Counts generated;            // sampled here, or fed again at positions beyond the prompt
    std::vector<TokenId> state;  // of a slot group: the tokens that passed by
    bool wrong = false;          // a group had something else than the first one
    int32_t shared_prefix = 0;   // in this step: keys that are read from the first row's blocks
  };

  void write(const ipc::BlockUpdates& updates, size_t group) {
    for (size_t i = 0; i < updates.slot.size(); ++i) {
      auto& table = slots_.at(updates.slot[i]).tables.at(group);
      REFRAIN_CHECK(table.empty() || table.rbegin()->first + 1 == updates.index[i],
                    "block tables grow one entry after the other");
      REFRAIN_CHECK(!table.empty() || updates.index[i] == 0 || groups_[group].window > 0,
                    "a block table begins with block {}", updates.index[i]);
      REFRAIN_CHECK(updates.block[i] != kReservedBlock, "the reserved block was given out");
      table[updates.index[i]] = updates.block[i];
    }
  }
  // States of slot groups that rows begin from, or leave.
  void checkpoints(const ipc::Step& step, bool begins) {
    for (size_t group = 0; group < step.blocks.size(); ++group) {
      const ipc::BlockUpdates& updates = step.blocks[group];
      for (size_t i = 0; !paged(group) && i < updates.slot.size(); ++i) {
        const ipc::Rows& rows = step.runs.at(0).rows;
        const auto row =
            static_cast<size_t>(std::ranges::find(rows.slot, updates.slot[i]) - rows.slot.begin());
        const int32_t at = updates.index[i] * block_size_;
        REFRAIN_CHECK(
            at == rows.computed.at(row) || at == rows.computed.at(row) + rows.num_tokens.at(row),
            "a checkpoint after {} tokens, where no row begins or ends", at);
        REFRAIN_CHECK(
            updates.block[i] > kReservedBlock && updates.block[i] < groups_[group].num_blocks,
            "checkpoint {}", updates.block[i]);
        std::vector<TokenId>& state = slots_.at(updates.slot[i]).state;
        if ((at == rows.computed.at(row)) != begins) continue;
        auto& kept = checkpoints_[{group, updates.block[i]}];
        (begins ? state : kept) = begins ? kept : state;
      }
    }
  }
  bool paged(size_t group) const { return groups_[group].kind == ipc::StateKind::kPaged; }
  TokenId& at(Slot& slot, size_t group, int32_t position) {
    const BlockId block = slot.tables[group].at(position / block_size_);
    return caches_[group].at(static_cast<size_t>(block * block_size_ + position % block_size_));
  }
  // What an adapter leaves in the cache is its own.
  static TokenId mark(const Slot& slot, TokenId token) { return token + slot.adapter * (1 << 20); }
  void put(Slot& slot, int32_t position, TokenId unmarked) {
    const TokenId token = mark(slot, unmarked);
    for (size_t group = 0; group < groups_.size(); ++group)
      if (paged(group)) at(slot, group, position) = token;
  }
  // What the draft model leaves behind the slot's last token, in the place of tokens to come.
  void draft(Slot& slot) {
    for (int32_t i = 0; i < drafts_; ++i)
      at(slot, groups_.size() - 1, slot.length - 1 + i) = kNothing;
  }
  void write(Slot& slot, int32_t position, std::span<const TokenId> tokens) {
    if (slot.setup.repetition_penalty != 1.0f) {
      REFRAIN_CHECK(slot.seen == position, "a penalised request must show the device every token");
      slot.seen += static_cast<int32_t>(tokens.size());
    }
    for (const TokenId fed : tokens) {
      if (fed != kTokenOnDevice && position >= slot.setup.prompt_len) ++slot.generated[fed];
      const TokenId token = fed == kTokenOnDevice ? slot.last : fed;
      slot.state.push_back(mark(slot, token));
      put(slot, position++, token);
      seen_by_groups(slot, position);
    }
  }
  // What each group has of the tokens up to `length` that its layers see is what the first one has:
  // every token looks at them when it is computed.
  void seen_by_groups(Slot& slot, int32_t length) {
    for (size_t group = 1; group < groups_.size(); ++group) {
      const int32_t window = groups_[group].window;
      const int32_t first = paged(group) && window > 0 ? std::max(0, length - window) : 0;
      for (int32_t position = first; position < length; ++position) {
        const TokenId has =
            paged(group) ? at(slot, group, position) : slot.state.at(static_cast<size_t>(position));
        slot.wrong = slot.wrong || has != at(slot, 0, position);
      }
      slot.wrong =
          slot.wrong || (!paged(group) && slot.state.size() != static_cast<size_t>(length));
    }
  }
  // Drafts are right or wrong by a hash of what stands before them; wrong ones leave their traces
  // in the cache, as they do on a device.
  void verify(Slot& slot, const ipc::Rows& rows, size_t row, ipc::StepResult& result) {
    const int32_t begin = slot.length - 1, count = rows.num_tokens[row];
    REFRAIN_CHECK(rows.computed[row] == begin || rows.computed[row] == ipc::kComputedOnDevice,
                  "a row begins at {}, its slot at {}", rows.computed[row], begin);
    const bool drafts = (rows.flags[row] & ipc::kNoDrafts) == 0;
    put(slot, begin, slot.last);
    for (int32_t i = 1; i < count; ++i) put(slot, begin + i, kNothing);
    seen_by_groups(slot, begin + 1);
    for (int32_t i = 0; i < count; ++i) {
      slot.last = sample(slot, begin + 1 + i);
      ++slot.generated[slot.last];
      ++slot.length;
      result.tokens.push_back(slot.last);
      if (!drafts || i + 1 == count || slot.last % 3 == 0) break;
      put(slot, begin + 1 + i, slot.last);
    }
    result.drafted.push_back(drafts ? count - 1 : 0);
    result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
  }
  TokenId sample(Slot& slot, int32_t length) {
    std::vector<TokenId> tokens;
    REFRAIN_CHECK(slot.shared_prefix < length, "{} tokens share a prefix of {}", length,
                  slot.shared_prefix);
    for (int32_t position = 0; position < length; ++position) {
      Slot& reads = position < slot.shared_prefix ? *shared_ : slot;  // once for all
      tokens.push_back(at(reads, 0, position) - mark(slot, 0));
    }
    const uint64_t draw =
        (draws_ ? draw_of(slot.setup) : 0) ^ draw_of(slot.adapter) ^ (slot.wrong ? 0x5bd1e995 : 0);
    return next_allowed(tokens, slot.setup, length - slot.setup.prompt_len, vocab_, eos_every_,
                        draw ^ penalty_of(slot.setup, slot.generated));
  }

  int32_t block_size_;
  std::vector<ipc::StateGroup> groups_;
  uint64_t vocab_;
  uint64_t eos_every_;
  bool draws_;
  int32_t drafts_;
  std::vector<std::vector<TokenId>> caches_;  // of each group
  std::map<std::pair<size_t, BlockId>, std::vector<TokenId>> checkpoints_;
  std::map<SlotId, Slot> slots_;
  Slot* shared_ = nullptr;  // whose blocks a shared prefix is read from
  std::map<int32_t, AdapterId> in_place_;
  ipc::Step first_part_;  // of the run of parts that began last
  int32_t next_part_ = 0;
};

}  // namespace refrain::testing
