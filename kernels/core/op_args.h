#pragma once
// Arguments of every kernel: plain structs of pointers and numbers, so that a launch is
// (function, arguments) and can be executed, recorded and replayed. Pointers are device addresses.
// Matrices are row-major [rows, cols] with a row stride in elements. float32 accumulation always.

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/row_distance.h"
#include "kernels/core/step_state.h"

namespace refrain::kernels {

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t stride = 0;  // elements from one row to the next
};

// How a weight [N, K] lies in memory. One copy serves every number of rows M.
enum class WeightLayout : uint8_t {
  kRowMajor,  // [N, K]
  kTiled16,  // bf16: [ceil(N/16)][K/2][16 n][2 k]; float32: [ceil(N/16)][K][16 n]; rows padded with
             // 0
};

struct Weight {
  const void* data = nullptr;
  DType dtype = DType::kBFloat16;
  WeightLayout layout = WeightLayout::kRowMajor;
  int64_t n = 0;  // rows (output features), unpadded
  int64_t k = 0;  // columns (input features)
};

// Rows of a launch. `padded` fixes the launch shape: in a graph it comes from the key, outside it
// may be the batch's own count. `live` (may be null: all rows are live) is read on the device: rows
// at or beyond it are inert, a kernel may skip them.
struct Rows {
  int32_t padded = 0;
  const int32_t* live = nullptr;
};

// Reads the next turn's step block, applies block-table and parameter updates, fills BatchInputs,
// pads it to `tokens` and `reqs`, and records fed tokens in the slots' history.
struct PrepareInputsArgs {
  const uint8_t* blocks[kTurns] = {};  // the step blocks, pinned memory
  uint8_t* block_copy = nullptr;       // [layout.total] device memory, for this op alone
  StepLayout layout;
  SlotState slots;
  BatchInputs inputs;
  int32_t tokens = 0;  // padded T of the key
  int32_t reqs = 0;    // padded R of the key
  int32_t block_size = 16;
  int32_t padded_seq_len = 1;  // fill value the attention op asks for
};

// out[t, :] = table[ids[t] - vocab_begin, :], or 0 when the id is outside [vocab_begin, vocab_end).
struct EmbedArgs {
  const int32_t* ids = nullptr;  // [T]
  Weight table;                  // [vocab_end - vocab_begin, H]
  int32_t vocab_begin = 0;
  int32_t vocab_end = 0;
  Matrix out;  // [T, H]
  Rows rows;
};

// out = in / sqrt(mean(in^2) + eps) * weight, over groups of `cols` columns.
struct RmsNormArgs {
  Matrix in;                      // [T, cols]
  const float* weight = nullptr;  // [cols]
  Matrix out;                     // [T, cols]
  int32_t cols = 0;
  float eps = 1e-5f;
  Rows rows;
};

// residual += delta (in place, rounded to its dtype); out = rms_norm(residual) * weight.
struct AddRmsNormArgs {
  Matrix residual;                // [T, cols]
  Matrix delta;                   // [T, cols]
  const float* weight = nullptr;  // [cols]
  Matrix out;                     // [T, cols]
  int32_t cols = 0;
  float eps = 1e-5f;
  Rows rows;
};

// out = a + b.
struct AddArgs {
  Matrix a, b, out;  // [T, cols]
  int32_t cols = 0;
  Rows rows;
};

// out = in · weightᵀ (+ bias) (+ residual). A row's result does not depend on the rows beside it
// (host: bitwise, for every M; CUDA: at one key).
struct LinearArgs {
  Matrix in;                    // [M, K]
  Weight weight;                // [N, K]
  const float* bias = nullptr;  // [N] or null
  Matrix residual;              // [M, N]; data null: none
  Matrix out;                   // [M, N]
  Rows rows;
};

inline constexpr int kMaxPeerRanks = 4;
inline constexpr int kPeerSumRows = 4;
inline constexpr int kPeerSumBlocks = 256;  // of a launch, at most

// A place where the ranks of a group add up few rows without a collective: one fused_linear pushes
// its output to all ranks, the next one's `delta` is their sum (in rank order, rounded to
// bfloat16). Device addresses. [source rank][kPeerSumRows][cols / 4] packets of 16
// bytes.
struct PeerSum {
  int32_t rank = 0;
  int32_t size = 0;                 // 0: none
  void* slots[kMaxPeerRanks] = {};  // of each rank, as this device sees it
  uint32_t* counters = nullptr;  // [2][kPeerSumBlocks]: pushes, pulls that each block has made here
  uint32_t* broken = nullptr;    // on the device: no further exchange
  uint32_t* looked = nullptr;    // on the device: when `verdict` was last read
  uint32_t* verdict = nullptr;   // host memory: 1 + the rank that did not come, or a stop
  uint64_t deadline_ns = 0;
};

// Few rows: what stands beside a linear in one launch with it. x = in, or rms_norm(in + delta) *
// norm; then linear's own meaning with x as its input; or, with silu_mul, out[:, i] =
// silu(y[:, i]) * y[:, n / 2 + i] of y = x · weightᵀ (no bias, no residual).
struct FusedLinearArgs {
  LinearArgs linear;
  const float* norm = nullptr;  // [K] or null: x = in
  float eps = 1e-5f;
  Matrix delta;    // [M, K]; data null: none; only with norm
  Matrix sum_out;  // [M, K]: in + delta, rounded to its type; other memory than in and delta
  bool silu_mul = false;
  PeerSum push;  // out goes to the ranks instead of out.data (bfloat16, no silu_mul, no residual)
  PeerSum pull;  // delta.data is not read: its value is the sum over the ranks
};

// out[:, i] = silu(in[:, i]) * in[:, cols + i]: gate in the left half of `in`, up in the right.
struct SiluMulArgs {
  Matrix in;   // [T, 2 * cols]
  Matrix out;  // [T, cols]
  int32_t cols = 0;
  Rows rows;
};

// Rotary embedding (pairs i, i + rotary_dim/2) of q and k inside qkv, in place for q, optionally
// after an RMSNorm over each head (Qwen3), and the write of k and v into the paged cache.
// cache: [block][K, V][kv head][token in block][head_dim].
struct RopeKvWriteArgs {
  Matrix qkv;                          // [T, (q_heads + 2 kv_heads) * head_dim]
  const int32_t* positions = nullptr;  // [T]
  const int64_t* kv_slots = nullptr;   // [T]
  const float* cos_sin = nullptr;      // [max_positions, rotary_dim]: cos half, then sin half
  const float* q_norm = nullptr;       // [head_dim] or null
  const float* k_norm = nullptr;       // [head_dim] or null
  float eps = 1e-6f;
  void* cache = nullptr;
  DType cache_dtype = DType::kBFloat16;
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  int32_t block_size = 16;
  Rows rows;
};

// The keys and values that a batch's tokens have in one layer's cache, copied to `dense` or, with
// restore, back from there. For audits.
struct KvRowsArgs {
  std::byte* cache = nullptr;
  std::byte* dense = nullptr;         // [tokens, (K, V) * kv_heads] heads
  const int64_t* kv_slots = nullptr;  // [tokens]
  int32_t tokens = 0;
  int32_t kv_heads = 0;
  int32_t head_bytes = 0;
  int32_t block_size = 16;
  bool restore = false;
};

// out[r] = how far row r of `got` lies from that of `expected`, both float32 or both bfloat16. For
// audits.
struct RowDistancesArgs {
  Matrix got, expected;        // [rows, cols]
  RowDistance* out = nullptr;  // [rows]
  int32_t cols = 0;
  Rows rows;
};

// Causal attention of every token over its own request's paged cache. Handles decode, prefill and
// mixed batches. Padded tokens, from tokens.live to tokens.padded, get zeros.
struct AttentionArgs {
  Matrix q;    // [T, q_heads * head_dim], often the left part of qkv
  Matrix out;  // [T, q_heads * head_dim]
  const void* cache = nullptr;
  DType cache_dtype = DType::kBFloat16;
  BatchInputs inputs;
  const int32_t* block_table = nullptr;  // [S+1, max_blocks], indexed by inputs.row_slot[row]
  int32_t max_blocks = 0;
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 16;
  int32_t sliding_window = 0;  // 0: full attention
  float scale = 1.0f;
  Rows tokens;
  Rows reqs;
  int32_t uniform_query_len = 0;  // > 0: a decode key, each request has exactly this many tokens
};

// rope_kv_write and then attention for a batch of one new token a request, in one launch; qkv stays
// as it is. attention.q is the left part of rope.qkv, attention.uniform_query_len is 1.
struct RopeAttentionArgs {
  RopeKvWriteArgs rope;
  AttentionArgs attention;
};

// out[r, :] = in[index[r], :].
struct SelectRowsArgs {
  Matrix in;                       // [T, cols]
  const int32_t* index = nullptr;  // [R]
  Matrix out;                      // [R, cols]
  int32_t cols = 0;
  Rows rows;
};

inline constexpr int32_t kBestParts = 16;  // of a row of logits

// The greatest logit of each of kBestParts slices of a row, and its lowest token, for rows that
// sample and are plainly greedy; -inf and -1 where a slice has no number. Other rows of `best` are
// left as they are.
struct BestTokensArgs {
  Matrix logits;            // [R, cols] float32: this rank's part of the vocabulary
  int32_t first_token = 0;  // of column 0
  int32_t num_tokens = 0;   // columns that are tokens
  float* best = nullptr;    // [R, kBestParts, 2]: logit, token
  BatchInputs inputs;
  const SlotParams* params = nullptr;  // of the slots
  Rows rows;
};

// Penalties, bias, mask, temperature, top-k, top-p, min-p, one random draw per row, and
// log-probabilities (of the penalised, biased, unscaled logits: before temperature).
// Logits of rank i lie in shard i: [shards][R][shard_cols] float32; token = i * shard_cols +
// column.
struct SampleArgs {
  const float* logits = nullptr;
  int32_t shards = 1;
  int64_t shard_cols = 0;    // padded vocabulary columns a shard
  int64_t shard_stride = 0;  // elements from one shard to the next
  // [shards][R, kBestParts, 2] of BestTokensArgs; then plainly greedy rows take their token from
  // here, and logits are there only when inputs.live_logits says so. Null: one shard.
  const float* best = nullptr;
  int32_t vocab_size = 0;
  BatchInputs inputs;
  SlotState slots;                // last_token and output_count are updated
  SampleOutputs outputs[kTurns];  // those of inputs.turn are written
  float* scratch = nullptr;       // [R, vocab_size]
  Rows rows;
};

}  // namespace refrain::kernels
