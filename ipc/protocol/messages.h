#pragma once
// All that coordinator and workers say to each other: plain structs in one closed variant, arrays
// where a step has many rows. No paths to act on. limits.h bounds what is decoded.

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ipc/protocol/capture_hidden_mode.h"
#include "ipc/protocol/group_role.h"
#include "ipc/protocol/kv_transfer.h"
#include "ipc/protocol/lora.h"
#include "ipc/protocol/rank_address.h"
#include "ipc/protocol/step_size.h"
#include "ipc/protocol/worker_config.h"
#include "runtime/base/ids.h"

namespace refrain::ipc {

inline constexpr uint16_t kProtocolVersion = 27;

// ---- start-up

// First frame of a worker. The coordinator answers Welcome or Refuse before anything else.
// Epochs: Hello and Refuse travel in epoch 0 with sequence 1, whatever epoch was before. Welcome is
// frame 1 of a new epoch (> 0, greater than any before) from coordinator to that worker; all that
// follows in either direction carries this epoch, the worker's own frames counting from 1. A worker
// without an answer repeats its Hello every few seconds, from the same peer id: a repeated Hello
// of a worker that was welcomed and has said something since means it lost its coordinator.
// Adoption: a worker whose coordinator is gone says in its Hello which group it holds ready.
// A Welcome that names that group, with its configuration, is answered with Loaded{kept} and the
// cache it has, and Ready at once; with another configuration, or naming none, it starts anew.
struct Hello {
  uint16_t protocol_version = kProtocolVersion;
  std::string build_id;
  std::string model_digest;
  int32_t group = 0, rank = 0;  // which of the coordinator's groups it joins, and where in it
  int32_t tensor_parallel_size = 1;
  int64_t pid = 0;
  uint64_t process_start = 0;  // of this pid; with it and the realm the process is known
  std::string realm;           // in which the pid counts (runtime/base/process_identity.h)
  std::string host;            // name of the machine, for people
  std::string device;
  std::string held_group;  // token of the group it holds weights and graphs of; empty: none
  Epoch last_epoch = 0;    // the epoch it was in last; a new one must be greater
  std::string role;        // of its group, as its command line says; empty: it does not
};

struct Welcome {
  WorkerConfig config;
  std::string group_token;  // names the group's shared memory and communicators in this epoch
  int64_t pid = 0;          // the coordinator's; a worker of the same realm watches it
  uint64_t process_start = 0;
  std::string realm;
  std::string held_group;      // of the Hello that it answers: what the coordinator counts on
  bool check_weights = false;  // the group before gave no finite logits: look for why in weights
};

struct Refuse {
  std::string reason;
};

enum class StartPhase : uint8_t { kConnect, kLoadWeights, kCapture, kReady };

// How far a worker's start is; shown as a progress bar or lines.
struct Progress {
  StartPhase phase = StartPhase::kLoadWeights;
  int64_t done = 0;
  int64_t total = 0;
  std::string detail;
};

enum class StateKind : uint8_t {
  kPaged,  // blocks of tokens; a request's table names its own
  kSlot,   // as much for every request, by its slot; cleared when one enters
};

// What a worker keeps of its requests from step to step; layers that keep the same are a group. The
// coordinator gives out the blocks of each paged group.
struct StateGroup {
  std::string name;
  StateKind kind = StateKind::kPaged;
  int32_t window = 0;        // kPaged: tokens that a layer looks back, its own included; 0: all
  int64_t bytes = 0;         // of a block or of a request, over the layers of this rank
  int64_t num_blocks = 0;    // as many fit, or checkpoints of kSlot, the reserved block 0 included
  int64_t cascade_keys = 0;  // that cascade attention must spare a step to pay; 0: there is none

  bool operator==(const StateGroup&) const = default;
};

// Weights are in; how much cache would fit before the captures. The least over ranks counts.
struct Loaded {
  std::vector<StateGroup> groups;
  int64_t weight_bytes = 0;
  double seconds = 0;
  bool kept = false;  // adopted: weights, cache and graphs are those of the group before
  // The model exchanges something with its replicas in each step: they step together (CG-17).
  bool steps_together = false;
};

struct InitCache {
  std::vector<int64_t> num_blocks;  // by group: the most there will be, the reserved one included
};

struct ManifestEntry {
  std::string mode;  // FULL or PIECEWISE
  int32_t num_tokens = 0, num_reqs = 0;
  bool uniform = false, has_lora = false;
  CaptureHiddenMode hidden = CaptureHiddenMode::kNull;
  int32_t pieces = 0, nodes = 0;
  int64_t bytes = 0;
  double capture_ms = 0;
  uint64_t digest = 0;         // of what all ranks capture alike
  uint64_t launch_digest = 0;  // of all that this rank captured, addresses excepted
};

// Captured and ready (CG-22). Coordinator compares manifests between ranks before serving.
struct Ready {
  std::string cudagraph_mode;  // in force, after downgrades
  int32_t uniform_query_len = 1;
  std::vector<int32_t> capture_sizes;
  std::vector<ManifestEntry> manifest;
  int64_t arena_bytes = 0;
  std::vector<std::string> warnings;
  std::vector<std::string> memory_tags;  // exact account of device memory
  std::vector<int64_t> memory_bytes;
  std::vector<int64_t> num_blocks;  // by group, with memory after the captures; the least counts
  int32_t row_tile = 1;             // tokens beyond multiples of it cost as much as so many
};

// ---- steps

// What a run is (CG-34).
enum class ForwardMode : uint8_t {
  kExtend,        // prompt chunks
  kDecode,        // one token a request
  kMixed,         // both, drafts or not
  kTargetVerify,  // the slots' last tokens and drafts after them
  kDraftExtend,   // a draft model's: over the tokens of the run before, then drafts after them
  kPrebuilt,      // a decode that begins a request whose KV came from another group
};

// Which of a worker's Programs a run is of.
enum class ProgramId : uint8_t { kLanguageModel, kDraftModel };

enum RowFlag : uint8_t {
  kSamples = 1,   // this run ends with a sampled token for the row
  kVerifies = 2,  // the row is the slot's last token and drafts, all made on the device; it begins
                  // where the slot is, and gives 1 token and one more for each draft that is right
  kNoDrafts = 4,  // of a row that verifies: its drafts are fillers that are never right
  kScores = 8,    // the prompt tokens that follow the row's tokens are scored
  kContinues = 16,  // with a draft head: the token after the row's last one is in next_tokens
};

enum class RuntimeMode : uint8_t { kNone, kPiecewise, kFull };

// Sampling parameters of a request that enters a slot; goes once.
struct SlotSetup {
  SlotId slot = 0;
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t top_k = 0;
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;  // of each prompt token that a row scores
  int32_t adapter = -1;              // place of its LoRA adapter; -1: none
  int32_t prompt_len = 0;            // of the request as it first came; tokens beyond it are output
  uint64_t seed = 0;
  std::vector<TokenId> bias_tokens;
  std::vector<float> bias_values;
  bool has_allowed_tokens = false;
  std::vector<TokenId> allowed_tokens;  // together with
  std::vector<uint32_t> allowed_mask;   // token t: bit t % 32 of word t / 32; ends at its last word
  int32_t min_tokens = 0;               // of output, before which no end token may be sampled
  std::vector<TokenId> end_tokens;      // eos and stop tokens; empty without min_tokens
  std::vector<uint8_t> grammar;  // source that the output keeps to (runtime/grammar); empty: none
  // The grammar begins behind these tokens: sequences that come one after another, divided by -1
  // where others may be between them. Empty: with the first token. With `reasoning_begin` it does
  // so too, unless the first token is that one.
  std::vector<TokenId> reasoning_end;
  TokenId reasoning_begin = -1;
  std::vector<TokenId> bad_words;      // sequences that may not come, each ended by -1
  std::vector<TokenId> output_tokens;  // with these: that there are, after a preemption
  int32_t history_begin = 0;           // with speculation: position of the first
  std::vector<TokenId> history;        // token that the cache holds and no row will bring

  // What may follow depends on the tokens that came.
  bool follows_output() const { return !grammar.empty() || !bad_words.empty(); }
};

// In Rows::computed: what was accepted in the step before is known to the device alone.
inline constexpr int32_t kComputedOnDevice = -1;

// Request rows of a run: decodes first, then prefill chunks.
struct Rows {
  std::vector<SlotId> slot;         // [R]
  std::vector<int32_t> num_tokens;  // [R] scheduled now
  std::vector<int32_t> computed;    // [R] already in the KV cache, or kComputedOnDevice
  std::vector<uint8_t> flags;       // [R] RowFlag
  std::vector<TokenId> token_ids;   // [T] or kTokenOnDevice
  // Of each row that scores or continues, in order: the token after its last one; -1: none.
  std::vector<TokenId> next_tokens;
  bool operator==(const Rows&) const = default;
};

// One Program run over rows; without any, over those of the run before.
// Parts: steps of their own with the same rows (CG-39); setups, blocks come with the first of them.
struct Run {
  ProgramId program = ProgramId::kLanguageModel;
  ForwardMode mode = ForwardMode::kExtend;
  Rows rows;
  int32_t part = 0, parts = 1;
  bool ends() const { return part + 1 == parts; }
};

// New entries of the block tables of one state group. Of a slot group they are checkpoints: the
// state after `index` blocks of tokens is taken from `block` where the slot's row begins there, and
// kept in it where the row ends there.
struct BlockUpdates {
  std::vector<SlotId> slot;    // [U]
  std::vector<int32_t> index;  // [U] in the slot's table
  std::vector<BlockId> block;  // [U]

  bool operator==(const BlockUpdates&) const = default;
};

// One step for every rank: its runs, in order (CG-39). Without a run the rank is idle.
struct Step {
  StepId step = 0;
  bool cascade = false;              // decodes share their first blocks, read once (CG-13)
  uint8_t allowed_modes = 7;         // bit i: RuntimeMode i may be used
  std::vector<Run> runs;             // of the language model, and of its draft model
  std::vector<BlockUpdates> blocks;  // by state group
  std::vector<SlotSetup> setups;
  bool audit = false;     // every rank runs it a second time, eagerly, and compares (CG-41)
  bool has_lora = false;  // a row has a LoRA adapter (CG-15)
  std::vector<AdapterPlacement> placements;  // of LoRA adapters; none is in use by a row before
  int32_t shared_prefix = 0;                 // with cascade: tokens of these blocks
  int32_t shared_rows = 0;                   // with cascade: so many first rows share them
  // Of all replicas, by group, its own included: all run the key that these have in common. Then a
  // run without rows runs too. Empty: the group steps by itself.
  std::vector<StepSize> together;
};

// What a rank's audit of a step found; distances are of the largest magnitude beside them.
struct AuditResult {
  bool audited = false;
  int32_t differences = 0;  // beyond the bound
  float worst_logit = 0;
  float worst_kv = 0;
  std::string first;  // the first difference: program, key, op
};

// In StepResult::tokens, instead of a row's tokens: its logits hold no number above -inf.
inline constexpr TokenId kNoFiniteLogit = -2;

// How likely prompt tokens are, given those before them: of the rows that score, in order. A row of
// n tokens after c computed ones has those at c + 1 to c + n, as far as the prompt goes.
struct PromptScores {
  std::vector<float> logprobs;       // [P]
  std::vector<int32_t> ranks;        // [P] 1: no other token is likelier
  std::vector<int32_t> top_offsets;  // [P+1] into the next two; empty: P is 0
  std::vector<TokenId> top_tokens;   // most likely first
  std::vector<float> top_logprobs;
  bool operator==(const PromptScores&) const = default;
};

// Every rank answers every step; rank 0 adds the tokens.
struct StepResult {
  StepId step = 0;
  int32_t rank = 0;
  RuntimeMode mode = RuntimeMode::kNone;
  int32_t key_tokens = 0;
  int32_t key_reqs = 0;
  bool key_uniform = false;
  bool key_lora = false;
  CaptureHiddenMode key_hidden = CaptureHiddenMode::kNull;
  int32_t num_tokens = 0;  // unpadded
  float device_ms = 0;
  std::vector<int32_t> token_offsets;  // [R+1] where the tokens of each row begin
  std::vector<TokenId> tokens;         // [N] none of a row that does not sample; or kNoFiniteLogit
  std::vector<float> logprobs;         // [N] when any row asked for them, else empty
  std::vector<int32_t> top_offsets;    // [N+1] into the next two
  std::vector<TokenId> top_tokens;
  std::vector<float> top_logprobs;
  std::vector<int32_t> drafted;  // [R] drafts proposed for each row; empty: no speculation
  // Rows whose grammar the rank could not follow in time: they end. Of all ranks, by StepGather.
  std::vector<int32_t> too_slow;
  AuditResult audit;  // StepGather makes it that of all ranks
  PromptScores prompt;
  std::vector<float> pooled;  // [N, hidden size] where the model pools; then tokens are all 0
};

// What a request's output will keep to. It is compiled beside the steps, and the request runs when
// all ranks have done so: no step waits for it.
struct Grammar {
  RequestId request = 0;
  std::vector<uint8_t> source;  // as in SlotSetup
};

struct GrammarReady {  // compiled, or it cannot be: then the request ends when it samples
  RequestId request = 0;
};

// ---- life

// From the engine loop and from the worker's device loop, not from the I/O thread.
struct Heartbeat {
  StepId last_step = 0;
  uint64_t counter = 0;
};

// How far a ready worker's device is, from its control thread and at the heartbeats' interval: it
// goes on while the device loop is in a step, and so tells a long step from a hang and which rank
// the others wait for. No heartbeat: it says nothing of the device loop.
struct Position {
  StepId last_step = 0;          // done
  uint64_t launches = 0;         // done since then
  bool counts_launches = false;  // false: `launches` are the steps submitted since then
};

struct Shutdown {
  std::string reason;
};

// The group is for something else from now on: each rank says Hello again, with what it holds, and
// its Welcome says what it captures for its new role (CG-23).
struct TakeRole {
  GroupRole role = GroupRole::kBoth;
};

// A worker's last words: what broke, at which step and op.
struct Failed {
  StepId step = 0;
  std::string message;
  bool configuration = false;  // true: the input is at fault (exit 64), a restart will not help
};

using Message = std::variant<Hello, Welcome, Refuse, Progress, Loaded, InitCache, Ready, Step,
                             StepResult, Heartbeat, Shutdown, Failed, Position, Grammar,
                             GrammarReady, LoadAdapter, AdapterLoaded, UnloadAdapter, RankAddress,
                             Peers, KvExport, KvPeers, PullBlocks, CancelPull, Pulled, TakeRole>;

// Tokens and request rows over all runs.
int64_t num_tokens(const Step& step);
int64_t num_rows(const Step& step);
// Entries of block tables over all groups.
int64_t num_block_updates(const Step& step);
StepSize size_of(const Step& step);  // of its language model's rows

const char* to_string(ForwardMode mode);
const char* to_string(RuntimeMode mode);
const char* to_string(GroupRole role);   // both, prefill, decode
const char* message_name(size_t index);  // of an alternative of Message

}  // namespace refrain::ipc
