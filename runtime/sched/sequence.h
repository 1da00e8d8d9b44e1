#pragma once
// One request inside the scheduler: its tokens, how far its KV cache is, what in-flight steps will
// add, and what it holds. Lives in the Scheduler from add() until no in-flight step has a row of
// it. A plain record; the Scheduler keeps its fields consistent.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/ids.h"
#include "runtime/sched/block_manager.h"
#include "runtime/sched/prefix_cache.h"

namespace refrain {

// The engine's own request of one token, which shows that the workers answer. Clients'
// requests count from 1; this one is in no count.
inline constexpr RequestId kCanaryRequest = 0;

// Tokens in order, as two numbers: enough to see that two parties mean the same ones.
class TokenDigest {
 public:
  void add(TokenId token) {
    hash_ = (hash_ ^ static_cast<uint32_t>(token)) * 1099511628211ULL;  // FNV-1a by words
    hash_ ^= hash_ >> 32;
    ++count_;
  }
  bool operator==(const TokenDigest&) const = default;
  uint64_t count() const { return count_; }

 private:
  uint64_t hash_ = 14695981039346656037ULL;
  uint64_t count_ = 0;
};

TokenDigest digest_of(std::span<const TokenId> tokens);

// What the engine says of a request when it enters the scheduler.
struct SequenceParams {
  int64_t max_tokens = 16;
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;
  std::string cache_salt;
  ipc::SlotSetup setup;  // slot and prompt_len are filled in by the scheduler
};

enum class SequenceState : uint8_t { kWaiting, kRunning, kFinished };

// Why a sequence ended; kNone: it goes on.
// kNoLogit: the model had no finite logit for it.
enum class StopCause : uint8_t {
  kNone,
  kEos,
  kStopToken,
  kMaxTokens,
  kMaxModelLen,
  kCancelled,
  kNoLogit
};

struct Sequence {
  Sequence(RequestId request, std::vector<TokenId> prompt, SequenceParams parameters);

  RequestId id;
  SequenceParams params;
  std::vector<TokenId> tokens;  // prompt, then the output known so far
  int32_t prompt_len;
  SequenceState state = SequenceState::kWaiting;

  // Progress, in tokens. num_computed <= num_scheduled <= length().
  int32_t num_computed = 0;   // in the KV cache, confirmed by a step's result
  int32_t num_scheduled = 0;  // in the KV cache once all in-flight steps have run
  int32_t pending = 0;        // sampled by in-flight steps, known to the device only
  int32_t in_flight = 0;      // steps sent and not answered that have a row of it

  // What it holds while running (or until its last in-flight step is answered).
  SlotId slot = -1;
  bool setup_sent = false;
  bool sampled = false;  // the slot has sampled: its last token is the sequence's last
  std::vector<BlockRef> blocks;
  int32_t blocks_sent = 0;  // entries of the device's block table that are written

  // Prefix cache: how many of its blocks are published, and the chain's last entry.
  int32_t blocks_published = 0;
  PrefixCache::EntryId chain = PrefixCache::kRoot;
  PrefixCache::Match prefix;  // while it waits: what is cached of it, as far as was looked
  int32_t cached_tokens = 0;  // prompt tokens taken from the cache when first admitted
  bool admitted_before = false;
  bool distrusted = false;  // a row of it had no finite logit: nobody may read its blocks

  // Losses of the worker group with a row of it in flight, since it last made progress.
  int32_t group_losses = 0;
  int32_t losses_alone = 0;  // of all losses: those at which nothing else was in flight
  int32_t length_at_loss = 0;
  bool in_lost_step = false;    // it had a row in flight at the last loss
  int32_t length_to_prove = 0;  // with so many tokens it has got past the steps of that loss

  int32_t length() const { return static_cast<int32_t>(tokens.size()) + pending; }
  int64_t output_len() const { return static_cast<int64_t>(tokens.size()) - prompt_len; }
  bool holds_nothing() const { return slot < 0 && blocks.empty(); }
  // No step after the in-flight ones is needed: they bring it to its last token.
  bool ends_in_flight(int64_t max_model_len) const;
  // How many of its first tokens may come from the prefix cache. The last token is always
  // computed, and a penalty needs the device to see the tokens it counts.
  int64_t max_prefix_tokens() const;
  // Its worker group is lost, and with it all that the device held. It keeps its tokens; the seed
  // and the position of the next token are all the random state there is.
  void lose_group();
  // It was in flight at so many losses in a row that it may be what ends the workers.
  static constexpr int32_t kSuspectLosses = 2;
  bool suspect() const { return group_losses >= kSuspectLosses; }
  bool past_loss() const { return static_cast<int32_t>(tokens.size()) >= length_to_prove; }
  // Appends a sampled token and says whether it ends the sequence.
  StopCause append(TokenId token, std::span<const TokenId> eos, int64_t max_model_len);
};

}  // namespace refrain
