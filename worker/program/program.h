#pragma once
// A model as data: ordered ops on named values, shapes symbolic in T (tokens) and R (requests).
// Passes (passes/) rewrite it; printer.h prints it; the interpreter (worker/graph) runs it through
// a kernel table. A Program is a value: copying it copies the model's meaning, not its weights.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/core/dtype.h"

namespace refrain::worker {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// Number of rows of a value: a constant, or a multiple of T or R.
struct Dim {
  enum class Kind : uint8_t { kConst, kTokens, kRequests } kind = Kind::kConst;
  int64_t scale = 1;
  static Dim constant(int64_t n) { return {Kind::kConst, n}; }
  static Dim tokens(int64_t scale = 1) { return {Kind::kTokens, scale}; }
  static Dim requests(int64_t scale = 1) { return {Kind::kRequests, scale}; }
  int64_t resolve(int64_t tokens, int64_t requests) const {
    return scale * (kind == Kind::kConst ? 1 : kind == Kind::kTokens ? tokens : requests);
  }
  bool operator==(const Dim&) const = default;
};

enum class ValueKind : uint8_t {
  kActivation,  // lives in the arena between its first and last use
  kWeight,      // read-only, loaded from the checkpoint
  kInput,       // a persistent input buffer, named by its value name (token_ids, positions, …)
  kState,       // KV cache of a layer, or another persistent state
  kOutput,      // persistent, outlives the step (logits, hidden states a Program names)
};

// How a Linear or Embed is spread over tensor-parallel ranks; the shard pass turns it into ranges
// and collectives.
enum class Parallel : uint8_t {
  kReplicated,
  kColumn,  // output features split; q, k, v by head groups, gate and up by blocks
  kRow,     // input features split; result summed over ranks
  kVocab,   // rows of the vocabulary split
};
// What a split follows.
enum class SplitUnit : uint8_t { kNone, kQueryHeads, kKvHeads, kIntermediate, kVocab };

// How a weight is put together from checkpoint tensors: parts stacked by rows; each part a row and
// column range of one tensor (the shard pass narrows the ranges). Vectors are one column wide:
// [N] is rows = N, cols = 1, and always held in float32.
struct WeightPart {
  std::string tensor = {};                   // "model.layers.0.self_attn.q_proj.weight"
  int64_t tensor_rows = 0, tensor_cols = 0;  // its whole shape in the checkpoint; [N] is [N, 1]
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
  int64_t pad_rows = 0;               // zero rows appended (vocabulary shards of equal size)
  SplitUnit unit = SplitUnit::kNone;  // what a split of its rows follows
};

enum class WeightUse : uint8_t { kMatrix, kVector, kRopeTable };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kActivation;
  DType dtype = DType::kBFloat16;
  Dim rows;
  int64_t cols = 0;
  WeightUse use = WeightUse::kMatrix;  // of kWeight
  std::vector<WeightPart> parts = {};  // of kWeight; empty for kRopeTable (computed)
  int kv_group = 0;                    // of kState
  int layer = -1;                      // -1: none
};

// ---- ops. Plain aggregates.
struct PrepareInputsOp {
  bool operator==(const PrepareInputsOp&) const = default;
};
struct EmbedOp {
  ValueId ids = kNoValue, table = kNoValue, out = kNoValue;
  int64_t vocab_begin = 0, vocab_end = 0;  // rows this rank holds
  bool operator==(const EmbedOp&) const = default;
};
struct RmsNormOp {
  ValueId in = kNoValue, weight = kNoValue, out = kNoValue;
  float eps = 1e-5f;
  int64_t group = 0;  // 0: whole row; else columns per normalised group (QK-norm: head_dim)
  bool operator==(const RmsNormOp&) const = default;
};
struct AddOp {
  ValueId a = kNoValue, b = kNoValue, out = kNoValue;
  bool operator==(const AddOp&) const = default;
};
struct AddRmsNormOp {  // residual_out = residual + delta (same storage), out = norm(residual_out)
  ValueId residual = kNoValue, delta = kNoValue, weight = kNoValue, residual_out = kNoValue,
          out = kNoValue;
  float eps = 1e-5f;
  bool operator==(const AddRmsNormOp&) const = default;
};
struct LinearOp {
  ValueId in = kNoValue, weight = kNoValue, bias = kNoValue, residual = kNoValue,
          out = kNoValue;  // bias, residual may be kNoValue
  Parallel parallel = Parallel::kReplicated;
  SplitUnit unit = SplitUnit::kNone;
  bool operator==(const LinearOp&) const = default;
};
struct SiluMulOp {  // in: gate | up
  ValueId in = kNoValue, out = kNoValue;
  bool operator==(const SiluMulOp&) const = default;
};
struct SiluGateOp {  // unfused form: out = silu(gate) * up
  ValueId gate = kNoValue, up = kNoValue, out = kNoValue;
  bool operator==(const SiluGateOp&) const = default;
};
struct RopeOp {  // unfused form: rotates q or k, heads of head_dim
  ValueId in = kNoValue, positions = kNoValue, table = kNoValue, out = kNoValue;
  int64_t heads = 0, head_dim = 0, rotary_dim = 0;
  bool operator==(const RopeOp&) const = default;
};
struct KvWriteOp {  // unfused form
  ValueId k = kNoValue, v = kNoValue, kv_slots = kNoValue, cache = kNoValue;
  int64_t kv_heads = 0, head_dim = 0;
  bool operator==(const KvWriteOp&) const = default;
};
struct RopeKvWriteOp {  // qkv in place; q_norm, k_norm may be kNoValue
  ValueId qkv = kNoValue, positions = kNoValue, kv_slots = kNoValue, table = kNoValue,
          q_norm = kNoValue, k_norm = kNoValue, cache = kNoValue, out = kNoValue;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  float eps = 1e-6f;
  bool operator==(const RopeKvWriteOp&) const = default;
};
struct AttentionOp {  // q: [T, q_heads * head_dim] in the left columns of its value
  ValueId q = kNoValue, cache = kNoValue, out = kNoValue;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, sliding_window = 0;
  float scale = 1.0f;
  int layer = 0;
  bool operator==(const AttentionOp&) const = default;
};
struct SelectRowsOp {  // one row a request: the hidden state that gives its logits
  ValueId in = kNoValue, index = kNoValue, out = kNoValue;
  bool operator==(const SelectRowsOp&) const = default;
};
struct BestTokensOp {  // best: [R, kBestParts * 2] of a rank's logits, columns first_token on
  ValueId logits = kNoValue, best = kNoValue;
  int64_t first_token = 0, num_tokens = 0;
  bool operator==(const BestTokensOp&) const = default;
};
struct SampleOp {  // logits: [shards][R][cols] float32; cols is SampleArgs::shard_cols, and columns
                   // at or beyond vocab_size (padding of the last shards) are not tokens.
                   // best: what the ranks' BestTokensOp found, gathered; kNoValue: one shard
  ValueId logits = kNoValue, best = kNoValue;
  int64_t shards = 1, vocab_size = 0;
  bool operator==(const SampleOp&) const = default;
};
struct AllReduceOp {  // in place
  ValueId value = kNoValue, out = kNoValue;
  bool operator==(const AllReduceOp&) const = default;
};
struct AllReduceAddRmsNormOp {  // delta, a part of a sum over ranks, becomes the sum; AddRmsNormOp
  ValueId residual = kNoValue, delta = kNoValue, weight = kNoValue, residual_out = kNoValue,
          out = kNoValue;
  float eps = 1e-5f;
  bool operator==(const AllReduceAddRmsNormOp&) const = default;
};
struct AllGatherOp {  // in: [R, cols]; out: [size][R][cols]
  ValueId in = kNoValue, out = kNoValue;
  bool of_logits = false;  // only in steps that need them (BatchInputs::live_logits)
  bool operator==(const AllGatherOp&) const = default;
};

// Forms for few rows (lower_few_rows): a linear with what stands beside it, and RoPE + KV write +
// attention of one new token a request.
struct FusedLinearOp {  // norm, delta, bias, residual, sum_out may be kNoValue
  ValueId in = kNoValue, norm = kNoValue, delta = kNoValue, weight = kNoValue, bias = kNoValue,
          residual = kNoValue, sum_out = kNoValue, out = kNoValue;
  float eps = 1e-5f;
  bool silu_mul = false;
  // Places where the ranks add up without an op between: `push` sends out to all ranks, whose sum
  // out then is; `pull` takes delta from there. -1: none.
  int32_t push = -1, pull = -1;
  bool operator==(const FusedLinearOp&) const = default;
};
struct RopeAttentionOp {  // rope.out, attention.q and attention.cache are kNoValue
  RopeKvWriteOp rope;
  AttentionOp attention;
  bool operator==(const RopeAttentionOp&) const = default;
};

using Op = std::variant<PrepareInputsOp, EmbedOp, RmsNormOp, AddOp, AddRmsNormOp, LinearOp,
                        SiluMulOp, SiluGateOp, RopeOp, KvWriteOp, RopeKvWriteOp, AttentionOp,
                        SelectRowsOp, BestTokensOp, SampleOp, AllReduceOp, AllReduceAddRmsNormOp,
                        AllGatherOp, FusedLinearOp, RopeAttentionOp>;

// Facts about the model that the runner and the KV cache need.
struct KvGroup {
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  int64_t num_layers = 0;
};

struct Program {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<KvGroup> kv_groups;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int tensor_parallel_size = 1;
  int rank = 0;

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
};

// Values an op reads and writes (an in-place value is in both), in field order.
std::vector<ValueId> reads(const Op& op);
std::vector<ValueId> writes(const Op& op);
// Pairs an op works on in place: `to` takes over the storage of `from`, which is dead afterwards.
struct InPlace {
  ValueId from, to;
};
std::vector<InPlace> in_place(const Op& op);
// "linear", "attention", … as printed, configured in splitting ops, and shown by profilers.
const char* op_name(const Op& op);
std::vector<std::string> op_names();  // of every op there is
bool is_collective(const Op& op);

}  // namespace refrain::worker
