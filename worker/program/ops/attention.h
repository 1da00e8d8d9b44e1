#pragma once
// Attention and what stands before it: rotary embedding, the write into the paged cache.

#include "kernels/core/attention_units.h"
#include "worker/program/op_def.h"

namespace refrain::worker {

struct Program;

struct RopeOp {  // unfused form: rotates q or k, heads of head_dim
  ValueId in = kNoValue, positions = kNoValue, table = kNoValue, out = kNoValue;
  int64_t heads = 0, head_dim = 0, rotary_dim = 0;
  bool operator==(const RopeOp&) const = default;
};

template <>
struct Definition<RopeOp> {
  using O = RopeOp;
  static constexpr const char* name = "rope";
  static constexpr Operand operands[] = {
      read("in", offsetof(O, in)), read("positions", offsetof(O, positions)),
      read("table", offsetof(O, table)), write("out", offsetof(O, out))};
  static std::string heads(const O& op) {
    return fmt::format("heads={}x{}", op.heads, op.head_dim);
  }
  static constexpr Attribute attributes[] = {of_rank(shown_as<O, &heads>()),
                                             shown<"rotary", &O::rotary_dim>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.in, op.out) && v[op.in].cols == op.heads * op.head_dim &&
                      v.rotary_fits(op.rotary_dim, op.head_dim, op.table),
                  "heads, table and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return false; }
};

struct KvWriteOp {  // unfused form
  ValueId k = kNoValue, v = kNoValue, kv_slots = kNoValue, cache = kNoValue;
  int64_t kv_heads = 0, head_dim = 0;
  bool operator==(const KvWriteOp&) const = default;
};

template <>
struct Definition<KvWriteOp> {
  using O = KvWriteOp;
  static constexpr const char* name = "kv_write";
  static constexpr Operand operands[] = {read("k", offsetof(O, k)), read("v", offsetof(O, v)),
                                         read("kv_slots", offsetof(O, kv_slots)),
                                         state("cache", offsetof(O, cache))};
  static std::string heads(const O& op) {
    return fmt::format("kv_heads={}x{}", op.kv_heads, op.head_dim);
  }
  static constexpr Attribute attributes[] = {of_rank(shown_as<O, &heads>())};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.k, op.v) && v[op.k].cols == op.kv_heads * op.head_dim &&
                      v.is_paged(op.cache),
                  "k, v and cache disagree");
  }
  static bool has_kernel(const kernels::KernelTable& /*table*/, const O& /*op*/) { return false; }
};

struct RopeKvWriteOp {  // qkv in place; q_norm, k_norm may be kNoValue
  ValueId qkv = kNoValue, positions = kNoValue, kv_slots = kNoValue, table = kNoValue,
          q_norm = kNoValue, k_norm = kNoValue, cache = kNoValue, out = kNoValue;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  float eps = 1e-6f;
  bool operator==(const RopeKvWriteOp&) const = default;
};

template <>
struct Definition<RopeKvWriteOp> {
  using O = RopeKvWriteOp;
  static constexpr const char* name = "rope_kv_write";
  static constexpr bool splits = true;  // attention gets ready beside it, and not beside a graph
  static constexpr Operand operands[] = {read("qkv", offsetof(O, qkv)),
                                         read("positions", offsetof(O, positions)),
                                         read("kv_slots", offsetof(O, kv_slots)),
                                         read("table", offsetof(O, table)),
                                         optional_read("q_norm", offsetof(O, q_norm)),
                                         optional_read("k_norm", offsetof(O, k_norm)),
                                         state("cache", offsetof(O, cache)),
                                         in_place("out", offsetof(O, out), offsetof(O, qkv))};
  static constexpr Attribute attributes[] = {
      of_rank(shown<"q_heads", &O::q_heads>()), of_rank(shown<"kv_heads", &O::kv_heads>()),
      shown<"head_dim", &O::head_dim>(), shown<"rotary", &O::rotary_dim>(),
      shown_with<"eps", &O::eps, &O::q_norm>()};
  // Of all but the result.
  static bool operands_agree(const Shapes& v, const O& op) {
    return v[op.qkv].cols == (op.q_heads + 2 * op.kv_heads) * op.head_dim &&
           v.rotary_fits(op.rotary_dim, op.head_dim, op.table) &&
           v.is_vector(op.q_norm, op.head_dim) && v.is_vector(op.k_norm, op.head_dim) &&
           (op.q_norm == kNoValue) == (op.k_norm == kNoValue) && v.is_paged(op.cache);
  }
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v.same_shape(op.qkv, op.out) && operands_agree(v, op),
                  "heads, table, norms and cache disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.rope_kv_write != nullptr;
  }
  template <class L>
  static kernels::RopeKvWriteArgs args(const L& l, const O& op) {
    kernels::RopeKvWriteArgs args;
    args.qkv = l.matrix(op.qkv);
    args.positions = l.at(op.positions);
    args.kv_slots = l.at(op.kv_slots);
    args.cos_sin = l.vector(op.table);
    args.q_norm = l.vector(op.q_norm);
    args.k_norm = l.vector(op.k_norm);
    args.eps = op.eps;
    args.cache = l.at(op.cache);
    args.cache_dtype = l.value(op.cache).dtype;
    args.q_heads = static_cast<int32_t>(op.q_heads);
    args.kv_heads = static_cast<int32_t>(op.kv_heads);
    args.head_dim = static_cast<int32_t>(op.head_dim);
    args.rotary_dim = static_cast<int32_t>(op.rotary_dim);
    args.block_size = l.block_size();
    args.rows = l.rows(op.qkv);
    return args;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().rope_kv_write(l.stream(), args(l, op));
  }
};

// What share_keys and attention are told alike of the requests and heads.
template <class L, class O, class Args>
void set_requests(const L& l, const O& op, Args& args) {
  args.inputs.query_start = l.at(op.query_start);
  args.inputs.seq_lens = l.at(op.seq_lens);
  args.inputs.row_slot = l.at(op.row_slot);
  args.block_table = l.at(op.block_table);
  args.max_blocks = l.cols(op.block_table);
  args.q_heads = static_cast<int32_t>(op.q_heads);
  args.kv_heads = static_cast<int32_t>(op.kv_heads);
  args.head_dim = static_cast<int32_t>(op.head_dim);
  args.block_size = l.block_size();
  args.sliding_window = static_cast<int32_t>(op.sliding_window);
}
template <class O>
bool requests_agree(const Shapes& v, const O& op) {
  return v.same_rows(op.seq_lens, op.row_slot) && v[op.block_table].kind == ValueKind::kState;
}

struct ShareKeysOp {  // once a step, for attention of many layers (add_key_shares)
  ValueId query_start = kNoValue, seq_lens = kNoValue, row_slot = kNoValue;  // of the requests
  ValueId block_table = kNoValue;                                            // by slot
  ValueId plan = kNoValue;  // of the attention: keys of a shared prefix are left out
  ValueId out = kNoValue;   // [KernelTable::key_shares_ints]
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, sliding_window = 0;
  bool operator==(const ShareKeysOp&) const = default;
};

template <>
struct Definition<ShareKeysOp> {
  using O = ShareKeysOp;
  static constexpr const char* name = "share_keys";
  static constexpr Operand operands[] = {
      read("query_start", offsetof(O, query_start)), read("seq_lens", offsetof(O, seq_lens)),
      read("row_slot", offsetof(O, row_slot)),       read("block_table", offsetof(O, block_table)),
      optional_read("plan", offsetof(O, plan)),      write("out", offsetof(O, out))};
  static constexpr Attribute attributes[] = {
      of_rank(shown<"q_heads", &O::q_heads>()), of_rank(shown<"kv_heads", &O::kv_heads>()),
      shown<"head_dim", &O::head_dim>(), shown_unless<"window", &O::sliding_window, int64_t{0}>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(requests_agree(v, op) && op.kv_heads > 0 && op.q_heads % op.kv_heads == 0 &&
                      v[op.out].dtype == DType::kInt32,
                  "heads, requests and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.share_keys != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::ShareKeysArgs args;
    set_requests(l, op, args);
    args.reqs = l.rows(op.row_slot);
    args.shares = l.at(op.out);
    if (l.may_cascade()) args.plan = l.at(op.plan);
    l.kernels().share_keys(l.stream(), args);
  }
};

struct AttentionOp {  // q: [T, q_heads * head_dim] in the left columns of its value
  ValueId q = kNoValue, cache = kNoValue;
  ValueId query_start = kNoValue, seq_lens = kNoValue, row_slot = kNoValue;  // of the requests
  ValueId block_table = kNoValue;                                            // by slot
  ValueId shares = kNoValue;                  // of a share_keys (add_key_shares)
  ValueId plan = kNoValue, parts = kNoValue;  // of planned_attention (add_attention_plans)
  ValueId out = kNoValue;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, sliding_window = 0;
  int64_t most_kv_heads = 0;  // of a sharded Program: of the rank that has most
  int64_t split_tokens = 0;   // with a plan: of a row whose keys are split
  float scale = 1.0f;
  int layer = 0;
  bool operator==(const AttentionOp&) const = default;
};

// Of the plan of an op that has one.
kernels::AttentionPlanShape plan_shape(const Program& program, const AttentionOp& op);

template <>
struct Definition<AttentionOp> {
  using O = AttentionOp;
  static constexpr const char* name = "attention";
  static constexpr bool splits = true;
  static constexpr Operand operands[] = {read("q", offsetof(O, q)),
                                         read("cache", offsetof(O, cache)),
                                         early_read("query_start", offsetof(O, query_start)),
                                         early_read("seq_lens", offsetof(O, seq_lens)),
                                         early_read("row_slot", offsetof(O, row_slot)),
                                         early_read("block_table", offsetof(O, block_table)),
                                         optional_early_read("shares", offsetof(O, shares)),
                                         optional_read("plan", offsetof(O, plan)),
                                         optional_write("parts", offsetof(O, parts)),
                                         write("out", offsetof(O, out))};
  static constexpr Attribute attributes[] = {
      ordinal<"layer", &O::layer>(),
      of_rank(shown<"q_heads", &O::q_heads>()),
      of_rank(shown<"kv_heads", &O::kv_heads>()),
      shown<"head_dim", &O::head_dim>(),
      shown<"scale", &O::scale>(),
      shown_unless<"window", &O::sliding_window, int64_t{0}>(),
      shown_unless<"split_tokens", &O::split_tokens, int64_t{0}>()};
  // Rows are requests, whatever the step's tokens are.
  static bool one_a_request(const Value& value) { return value.rows == Dim::requests(); }
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v[op.q].cols >= op.q_heads * op.head_dim &&
                      v[op.out].cols == op.q_heads * op.head_dim && v.same_rows(op.q, op.out) &&
                      op.kv_heads > 0 && op.q_heads % op.kv_heads == 0 && v.is_paged(op.cache) &&
                      requests_agree(v, op),
                  "heads, q, cache, requests and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.attention != nullptr;
  }
  template <class L>
  static kernels::AttentionPlanArgs plan_args(const L& l, const O& op,
                                              const kernels::AttentionArgs& args) {
    if (op.plan == kNoValue) return {};
    const auto shape = plan_shape(l.program(), op);
    return {l.at(op.plan), l.at(op.parts), shape,
            shape.max_units(args.tokens.padded, args.reqs.padded, l.cascade())};
  }
  template <class L>
  static kernels::AttentionArgs args(const L& l, const O& op, ValueId q, ValueId cache) {
    kernels::AttentionArgs args;
    args.q = l.matrix(q);
    args.out = l.matrix(op.out);
    args.cache = l.at(cache);
    args.cache_dtype = l.value(cache).dtype;
    set_requests(l, op, args);
    args.scale = op.scale;
    args.tokens = l.real_rows(op.out);
    args.reqs = l.real_rows(op.row_slot);
    args.uniform_query_len = one_a_request(l.value(op.out)) ? 1 : l.uniform_query_len();
    args.shares = l.at(op.shares);
    args.planned = plan_args(l, op, args);
    return args;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.attention(args(l, op, op.q, op.cache), l.value(op.cache).group);
  }
};

// For one new token a request (lower_few_rows). rope.out, attention.q and attention.cache are
// kNoValue: the rotated q stays in the launch.
struct RopeAttentionOp {
  RopeKvWriteOp rope;
  AttentionOp attention;
  bool operator==(const RopeAttentionOp&) const = default;
};

// An attribute of one of the two ops inside.
template <auto inside, size_t index>
constexpr Attribute of_op() {
  using Inside = Definition<attribute_detail::ValueOf<inside>>;
  Attribute attribute = Inside::attributes[index];
  attribute.text = [](const void* op) {
    return Inside::attributes[index].text(&(static_cast<const RopeAttentionOp*>(op)->*inside));
  };
  attribute.forget = [](void* op) {
    const auto forget = Inside::attributes[index].forget;
    if (forget != nullptr) forget(&(static_cast<RopeAttentionOp*>(op)->*inside));
  };
  return attribute;
}

template <>
struct Definition<RopeAttentionOp> {
  using O = RopeAttentionOp;
  using Rope = Definition<RopeKvWriteOp>;
  using Attention = Definition<AttentionOp>;
  static constexpr const char* name = "rope_attention";
  static constexpr Operand operands[] = {
      read("qkv", offsetof(O, rope.qkv)),
      read("positions", offsetof(O, rope.positions)),
      read("kv_slots", offsetof(O, rope.kv_slots)),
      read("table", offsetof(O, rope.table)),
      optional_read("q_norm", offsetof(O, rope.q_norm)),
      optional_read("k_norm", offsetof(O, rope.k_norm)),
      state("cache", offsetof(O, rope.cache)),
      early_read("query_start", offsetof(O, attention.query_start)),
      early_read("seq_lens", offsetof(O, attention.seq_lens)),
      early_read("row_slot", offsetof(O, attention.row_slot)),
      early_read("block_table", offsetof(O, attention.block_table)),
      write("out", offsetof(O, attention.out))};
  static constexpr Attribute attributes[] = {
      of_op<&O::rope, 0>(),      of_op<&O::rope, 1>(),      of_op<&O::rope, 2>(),
      of_op<&O::rope, 3>(),      of_op<&O::rope, 4>(),      of_op<&O::attention, 0>(),
      of_op<&O::attention, 1>(), of_op<&O::attention, 2>(), of_op<&O::attention, 3>(),
      of_op<&O::attention, 4>(), of_op<&O::attention, 5>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(Rope::operands_agree(v, op.rope) && requests_agree(v, op.attention) &&
                      v[op.attention.out].cols == op.rope.q_heads * op.rope.head_dim &&
                      v.same_rows(op.rope.qkv, op.attention.out),
                  "heads, table, norms, cache, requests and result disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.rope_attention != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    l.kernels().rope_attention(
        l.stream(),
        {Rope::args(l, op.rope), Attention::args(l, op.attention, op.rope.qkv, op.rope.cache)});
  }
};

}  // namespace refrain::worker
