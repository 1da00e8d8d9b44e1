#pragma once
// One request inside the scheduler: its tokens, how far its KV cache is, what in-flight steps will
// add, and what it holds. Lives in the Scheduler from add() until no in-flight step has a row of
// it. A plain record; the Scheduler keeps its fields consistent.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
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
  AdapterId adapter = 0;  // its LoRA adapter; 0: none
  int32_t priority = 0;   // lower ones come first (--scheduling-policy priority)
  ipc::SlotSetup setup;   // slot and prompt_len are filled in by the scheduler
};

// What a sequence holds of one state group.
struct HeldBlocks {
  std::vector<BlockRef> blocks;  // by place in the block table
  int32_t first = 0;             // those before it were given back, or never taken
  int32_t sent = 0;              // entries of the device's block table that are written
};

enum class SequenceState : uint8_t { kWaiting, kReceiving, kRunning, kFinished };

// Why a sequence ended; kNone: it goes on.
// kNoLogit: the model had no finite logit for it.
// kGrammar: its grammar took too long to follow.
enum class StopCause : uint8_t {
  kNone,
  kEos,
  kStopToken,
  kMaxTokens,
  kMaxModelLen,
  kCancelled,
  kNoLogit,
  kGrammar
};

class BlockLease;

struct Sequence {
  Sequence(RequestId request, std::vector<TokenId> prompt, SequenceParams parameters);

  RequestId id;
  // What each step of a running sequence reads and writes, side by side.
  std::vector<TokenId> tokens;  // prompt, then the output known so far
  int32_t prompt_len;
  SequenceState state = SequenceState::kWaiting;
  bool setup_sent = false;
  bool sampled = false;  // the slot has sampled: its last token is the sequence's last

  // Progress, in tokens. num_computed <= num_scheduled <= length().
  int32_t num_computed = 0;   // in the KV cache, confirmed by a step's result
  int32_t num_scheduled = 0;  // in the KV cache once all in-flight steps have run
  int32_t pending = 0;        // sampled by in-flight steps at least, known to the device only
  int32_t pending_most = 0;   // the same at most: more than `pending` where drafts may be right
  int32_t in_flight = 0;      // steps sent and not answered that have a row of it
  StepId planned = 0;         // the last step with a row of it
  int32_t split_tokens = 0;   // of the row that is under way in parts (CG-39); 0: none is
  int32_t next_part = 0;      // of that row

  // What it holds while running (or until its last in-flight step is answered).
  SlotId slot = -1;
  int32_t adapter_place = -1;    // -1: none
  int32_t tokens_held = 0;       // its blocks of every group have room for so many
  int32_t tokens_sent = 0;       // and for so many the device's block tables have entries
  int32_t blocks_published = 0;  // of its blocks so many can be found by others
  int32_t cached_tokens = 0;     // prompt tokens taken from the cache when first admitted
  TimePoint scheduled{};         // when its first step was planned
  PrefixCache::EntryId chain = PrefixCache::kRoot;  // the last entry of those published
  std::vector<HeldBlocks> held;                     // by state group; empty: nothing
  SequenceParams params;

  // Its adapter and its salt: requests of different ones share no blocks, whatever the salt says.
  std::string block_space;
  PrefixCache::Match prefix;  // while it waits: what is cached of it, as far as was looked
  // As it was looked at last, or admitted: then others run beside it while it is computed.
  bool long_prompt = false;
  bool admitted_before = false;
  bool distrusted = false;  // a row of it had no finite logit: nobody may read its blocks

  // Between groups with roles.
  bool hands_over = false;  // with its next token it leaves, and its blocks stay under a lease
  bool prebuilt = false;    // its KV came from another group: its first row here is a decode
  int32_t failed_transfers = 0;
  std::shared_ptr<BlockLease> source;    // blocks of another group that hold all but its last token
  std::shared_ptr<BlockLease> promised;  // on its own blocks, when its step in flight has ended

  // With prompt_logprobs: of the tokens from the second on, as far as steps have told them. What is
  // told is kept over preemption and loss, and goes out with the first token of output.
  ipc::PromptScores scores;

  // Losses of the worker group with a row of it in flight, since it last made progress.
  int32_t group_losses = 0;
  int32_t losses_alone = 0;  // of all losses: those at which nothing else was in flight
  int32_t length_at_loss = 0;
  bool in_lost_step = false;    // it had a row in flight at the last loss
  int32_t length_to_prove = 0;  // with so many tokens it has got past the steps of that loss

  int32_t length() const { return static_cast<int32_t>(tokens.size()) + pending; }
  int64_t output_len() const { return static_cast<int64_t>(tokens.size()) - prompt_len; }
  // Whether a row of it may take drafts: penalties count tokens one by one, min_tokens are kept by
  // a mask that is lifted between steps, and the words that end bad ones follow from the token
  // before.
  bool takes_drafts() const;
  // How many of the tokens computed after the first `computed` ones are followed by a prompt token,
  // which is to be scored, if the row of the next `num_tokens` ones scores at all; else 0.
  int32_t num_scored(int32_t computed, int32_t num_tokens) const {
    return params.setup.num_prompt_logprobs < 0 ? 0 : num_to_score(computed, num_tokens);
  }
  // More than one token of the known ones is not yet in the KV cache: a chunk of its prompt is
  // left.
  bool chunk_left() const { return length() - num_scheduled > 1; }
  bool holds_nothing() const { return slot < 0 && held.empty(); }
  // No step after the in-flight ones is needed: they bring it to its last token here.
  bool ends_in_flight(int64_t max_model_len) const {
    return (hands_over && pending > 0) || output_len() + pending >= params.max_tokens ||
           length() >= max_model_len;
  }
  // How many of its first tokens may come from the prefix cache. The last token is always
  // computed, a penalty needs the device to see the tokens it counts, and prompt tokens are scored
  // where the token before is computed.
  int64_t max_prefix_tokens() const;
  // Its answer begins with tokens that its client has from an engine before this one.
  void go_on_behind(std::span<const TokenId> begun, int64_t cached);
  // Its worker group is lost, and with it all that the device held. It keeps its tokens; the seed
  // and the position of the next token are all the random state there is.
  void lose_group();
  // It was in flight at so many losses in a row that it may be what ends the workers.
  static constexpr int32_t kSuspectLosses = 2;
  // The loss of its group was nobody's fault.
  void forgive_loss() {
    if (std::exchange(in_lost_step, false)) --group_losses;
  }
  bool suspect() const { return group_losses >= kSuspectLosses; }
  bool past_loss() const { return static_cast<int32_t>(tokens.size()) >= length_to_prove; }
  // Appends a sampled token and says whether it ends the sequence.
  StopCause append(TokenId token, std::span<const TokenId> eos, int64_t max_model_len);

 private:
  int32_t num_to_score(int32_t computed, int32_t num_tokens) const;
};

}  // namespace refrain
