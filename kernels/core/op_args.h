#pragma once
// Arguments of every kernel: plain structs of pointers and numbers, so that a launch is
// (function, arguments) and can be executed, recorded and replayed. Pointers are device addresses.
// Matrices are row-major [rows, cols] with a row stride in elements. float32 accumulation always.

#include <cstddef>
#include <cstdint>

#include "kernels/core/attention_units.h"
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
  PagedInputs paged[kMaxPagedGroups];
  int32_t num_paged = 0;   // of these
  int32_t max_blocks = 0;  // that a request can have
  int32_t tokens = 0;      // padded T of the key
  int32_t reqs = 0;        // padded R of the key
  int32_t samples = 0;     // padded N of the key, with speculation
  int32_t block_size = 16;
  int32_t padded_seq_len = 1;  // fill value the attention op asks for
};

// Behind the ops that write what a layer keeps: *flag = layer_flag(the step's number), for readers
// beside the device, who then find those writes.
struct PublishLayerArgs {
  const uint8_t* blocks[kTurns] = {};  // the step blocks, pinned memory
  const uint32_t* turn = nullptr;      // of the one that prepare_inputs has read
  size_t header = 0;                   // StepLayout::header
  uint64_t* flag = nullptr;            // device memory
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

// weight[:, i] *= norm[i], rounded to its type; then norm[i] = 1. When weights are loaded.
struct FoldNormArgs {
  Matrix weight;  // [rows, cols]
  float* norm = nullptr;
  int64_t rows = 0;
  int32_t cols = 0;
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

// Where a linear of up to 80 rows sends its outputs instead of to `out`, as bfloat16 words of two
// columns, for the sum over ranks behind it (worker/comm/cuda/exchange_packets.h). Device
// addresses.
struct PeerPackets {
  int32_t size = 0;                    // ranks, this one too; 0: none
  void* at[kMaxPeerRanks] = {};        // of each rank: what it has of this one, of an even number
  int64_t odd_bytes = 0;               // from there to what it has of an odd number
  int64_t row_packets = 0;             // of 16 bytes, from a row to the next; 32 have a count
  const uint32_t* counters = nullptr;  // exchanges made there
};

// What stands beside a linear in one launch with it, of up to 256 rows. x = in, or rms_norm(in +
// delta) * norm; then linear's own meaning with x as its input; or, with silu_mul, out[:, i] =
// silu(y[:, i]) * y[:, n / 2 + i] of y = x · weightᵀ (no bias, no residual).
struct FusedLinearArgs {
  LinearArgs linear;
  const float* norm = nullptr;  // [K] or null: x = in
  float eps = 1e-5f;
  bool unit_norm = false;  // norm is all ones: more rows than few take such alone
  Matrix delta;            // [M, K]; data null: none; only with norm
  Matrix sum_out;  // [M, K]: in + delta, rounded to its type; other memory than in and delta
  bool silu_mul = false;
  PeerSum push;  // out goes to the ranks instead of out.data (bfloat16, no silu_mul, no residual)
  PeerSum pull;  // delta.data is not read: its value is the sum over the ranks
  PeerPackets send;  // of a plain output, with or without a bias
  // [M, best_parts, 2] or null: the greatest output of each of so many parts of a row, and the
  // first token that has it, of num_tokens columns from token first_token on; -inf and -1 where
  // there is no number above. Then `out` is written only where *live_logits is above 0. float32,
  // with nothing else beside the linear.
  float* best = nullptr;
  int32_t best_parts = 0;
  int64_t first_token = 0, num_tokens = 0;
  const int32_t* live_logits = nullptr;
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

// What a batch's tokens have in one part of a layer's blocks, copied to `dense` or, with restore,
// back from there. For audits.
struct KvRowsArgs {
  std::byte* cache = nullptr;         // the part in block 0
  std::byte* dense = nullptr;         // [tokens, units] of unit_bytes
  const int64_t* kv_slots = nullptr;  // [tokens]
  int32_t tokens = 0;
  int32_t units = 0;
  int32_t unit_bytes = 0;   // of a unit and token, even
  int64_t block_bytes = 0;  // from a block to the next one
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

// Of planned_attention: what the host made of the step's lengths (attention_units.h). Device
// addresses.
struct AttentionPlanArgs {
  const int32_t* plan = nullptr;  // [AttentionPlanShape::ints()]; null: there is none
  float* parts = nullptr;         // [AttentionPlanShape::max_parts(), q_heads, head_dim + 2]
  AttentionPlanShape shape;
  int32_t max_units = 0;  // of this launch
};

// How the keys of a step's requests are shared out, for the attention of all its layers: what
// attention finds in AttentionArgs::shares. Requests of too many tokens have no part in it.
struct ShareKeysArgs {
  BatchInputs inputs;
  const int32_t* block_table = nullptr;  // as in AttentionArgs
  int32_t max_blocks = 0;
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 16;
  int32_t sliding_window = 0;
  Rows reqs;
  int32_t* shares = nullptr;  // [KernelTable::key_shares_ints]
  // Of planned_attention: keys of a prefix that rows share there are left out. Null: there is none.
  const int32_t* plan = nullptr;
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
  int32_t uniform_query_len = 0;    // > 0: a decode key, each request has exactly this many tokens
  const int32_t* shares = nullptr;  // of share_keys, for as many requests or more; null: none
  AttentionPlanArgs planned;        // of planned_attention alone
};

// What makes AttentionArgs::shares for attention of these arguments.
inline ShareKeysArgs share_keys_for(const AttentionArgs& of, int32_t* shares) {
  return {of.inputs,     of.block_table,    of.max_blocks, of.q_heads, of.kv_heads,    of.head_dim,
          of.block_size, of.sliding_window, of.reqs,       shares,     of.planned.plan};
}

// A gated linear recurrence over the tokens of each request, a state a slot:
// h = a * h + (1 - a) * in[t], out[t] = h, a = sigmoid(gate[t]). Rows of padded tokens stay as they
// were; padded requests have no tokens. The state after the token at position p is number
// p % versions of its slot, kept of the last tokens of each request. A request goes on from the
// state of the position before its first token: drafts that were wrong have left only later ones.
struct LinearRecurrenceArgs {
  Matrix gate, in, out;                  // [T, cols]
  float* state = nullptr;                // [S+1, versions, cols]
  const int32_t* positions = nullptr;    // [T]
  const int32_t* query_start = nullptr;  // [R+1]
  const int32_t* row_slot = nullptr;     // [R]
  int32_t cols = 0;
  int32_t versions = 1;
  Rows reqs;
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

}  // namespace refrain::kernels
