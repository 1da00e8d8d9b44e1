#pragma once
// Everything that coordinator and workers say to each other: plain structs in one closed variant,
// struct-of-arrays where a step has many rows. No pointers, no polymorphism, no paths to act on
// . Sizes are bounded by ipc/protocol/limits.h when decoded.

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/ids.h"

namespace refrain::ipc {

inline constexpr uint16_t kProtocolVersion = 9;

// ---- configuration (coordinator -> worker, inside Welcome)

// Sent whole to every worker; all else a worker needs is on its command line (weights, device).
struct WorkerConfig {
  int32_t tensor_parallel_size = 1;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  int32_t block_size = 16;
  std::string dtype = "bfloat16";       // activations: bfloat16 | float32
  std::string kv_cache_dtype = "auto";  // auto: as dtype
  std::string attention_backend = "auto";
  int64_t kv_cache_memory_bytes = 0;  // 0: the device decides (gpu_memory_utilization)
  double gpu_memory_utilization = 0.9;
  int64_t num_gpu_blocks_override = 0;
  bool load_dummy = false;  // --load-format dummy
  uint64_t seed = 0;
  // CUDA graphs, as configured; every rank resolves them alike (spec CG-1 … CG-14).
  bool enforce_eager = false;
  std::string cudagraph_mode = "FULL_AND_PIECEWISE";
  bool has_capture_sizes = false;
  std::vector<int32_t> cudagraph_capture_sizes;
  int32_t max_cudagraph_capture_size = 0;  // 0: not given
  int32_t num_speculative_tokens = 0;
  bool has_splitting_ops = false;
  std::vector<std::string> splitting_ops;
  bool disable_padding = false;
  double max_padding_ratio = 0;  // 0: off
  bool debug_cudagraph = false;
  int32_t collective_timeout_ms = 30000;
  bool disable_custom_all_reduce = false;
  bool audit = false;  // steps may ask for an audit: the runner has memory for it

  bool operator==(const WorkerConfig&) const = default;
};

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
  int32_t rank = 0;
  int32_t tensor_parallel_size = 1;
  int64_t pid = 0;
  uint64_t process_start = 0;  // of this pid; with it and the realm the process is known
  std::string realm;           // in which the pid counts (runtime/base/process_identity.h)
  std::string host;            // name of the machine, for people
  std::string device;
  std::string held_group;  // token of the group it holds weights and graphs of; empty: none
  Epoch last_epoch = 0;    // the epoch it was in last; a new one must be greater
};

struct Welcome {
  WorkerConfig config;
  std::string group_token;  // names the group's shared memory and communicators in this epoch
  int64_t pid = 0;          // the coordinator's; a worker of the same realm watches it
  uint64_t process_start = 0;
  std::string realm;
  std::string held_group;  // of the Hello that it answers: what the coordinator counts on
  bool check_weights =
      false;  // the group before gave no finite logits: refuse weights that explain it
};

struct Refuse {
  std::string reason;
};

enum class StartPhase : uint8_t { kConnect, kLoadWeights, kProfile, kCapture, kReady };

// How far a worker's start is; shown as a progress bar or lines.
struct Progress {
  StartPhase phase = StartPhase::kLoadWeights;
  int64_t done = 0;
  int64_t total = 0;
  std::string detail;
};

// Weights are in; how much cache would fit before the captures. The coordinator takes the least
// over ranks.
struct Loaded {
  int64_t num_kv_blocks = 0;
  int64_t kv_block_bytes = 0;
  int64_t weight_bytes = 0;
  double seconds = 0;
  bool kept = false;  // adopted: weights, cache and graphs are those of the group before
};

struct InitCache {
  int64_t num_kv_blocks = 0;  // the most there will be, including the reserved block 0
};

struct ManifestEntry {
  std::string mode;  // FULL or PIECEWISE
  int32_t num_tokens = 0;
  int32_t num_reqs = 0;
  bool uniform = false;
  int32_t pieces = 0;
  int32_t nodes = 0;
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
  int64_t num_kv_blocks = 0;  // with memory after the captures; the least over ranks counts
};

// ---- steps

enum class ForwardMode : uint8_t {
  kIdle,
  kExtend,
  kDecode,
  kMixed,
  kTargetVerify,
  kDraftExtend,
  kDraftExtendV2,
  kPrebuilt,
  kSplitPrefill,
  kDllmExtend,
};

enum RowFlag : uint8_t {
  kSamples = 1,  // this step ends with a sampled token for the row
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
  int32_t prompt_len = 0;  // of the request as it first came; tokens beyond it are output
  uint64_t seed = 0;
  std::vector<TokenId> bias_tokens;
  std::vector<float> bias_values;
  bool has_allowed_tokens = false;
  std::vector<TokenId> allowed_tokens;  // together with
  std::vector<uint32_t> allowed_mask;   // token t: bit t % 32 of word t / 32; ends at its last word
  int32_t min_tokens = 0;               // of output, before which no end token may be sampled
  std::vector<TokenId> end_tokens;      // eos and stop tokens; empty without min_tokens
};

// One step for every rank. Rows: decodes first, then prefill chunks.
struct Step {
  StepId step = 0;
  ForwardMode mode = ForwardMode::kIdle;
  bool cascade = false;
  uint8_t allowed_modes = 7;            // bit i: RuntimeMode i may be used
  std::vector<SlotId> row_slot;         // [R]
  std::vector<int32_t> row_num_tokens;  // [R] scheduled now
  std::vector<int32_t> row_computed;    // [R] already in the KV cache
  std::vector<uint8_t> row_flags;       // [R] RowFlag
  std::vector<TokenId> token_ids;       // [T] or kTokenOnDevice
  std::vector<SlotId> block_slot;       // [U] new entries of block tables
  std::vector<int32_t> block_index;     // [U]
  std::vector<BlockId> block_id;        // [U]
  std::vector<SlotSetup> setups;
  bool audit = false;  // every rank runs it a second time, eagerly, and compares (CG-41)
};

// What a rank's audit of a step found; distances are of the largest magnitude beside them.
struct AuditResult {
  bool audited = false;
  int32_t differences = 0;  // beyond the bound
  float worst_logit = 0;
  float worst_kv = 0;
  std::string first;  // the first difference: program, key, op
};

// In StepResult::tokens: the row should have sampled, and its logits hold no number above -inf.
// It ends its own request.
inline constexpr TokenId kNoFiniteLogit = -2;

// Every rank answers every step; rank 0 adds the tokens.
struct StepResult {
  StepId step = 0;
  int32_t rank = 0;
  RuntimeMode mode = RuntimeMode::kNone;
  int32_t key_tokens = 0;
  int32_t key_reqs = 0;
  bool key_uniform = false;
  int32_t num_tokens = 0;  // unpadded
  float device_ms = 0;
  std::vector<TokenId> tokens;       // [R], -1: did not sample, or kNoFiniteLogit (rank 0 only)
  std::vector<float> logprobs;       // [R] when any row asked for them, else empty
  std::vector<int32_t> top_offsets;  // [R+1] into the next two
  std::vector<TokenId> top_tokens;
  std::vector<float> top_logprobs;
  AuditResult audit;  // StepGather makes it that of all ranks
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

// A worker's last words: what broke, at which step and op.
struct Failed {
  StepId step = 0;
  std::string message;
  bool configuration = false;  // true: the input is at fault (exit 64), a restart will not help
};

using Message = std::variant<Hello, Welcome, Refuse, Progress, Loaded, InitCache, Ready, Step,
                             StepResult, Heartbeat, Shutdown, Failed, Position>;

const char* to_string(ForwardMode mode);
const char* to_string(RuntimeMode mode);
const char* message_name(size_t index);  // of an alternative of Message

}  // namespace refrain::ipc
