#include "worker/graph/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

using kernels::Matrix;
using kernels::Rows;

// From the values of an op to its kernel's arguments.
struct Launch {
  const OpContext& c;
  const BatchDescriptor& key;
  const BatchShape* batch;  // null: recorded for all batches of the key

  const Value& value(ValueId id) const { return c.program->value(id); }
  void* address(ValueId id) const { return c.addresses[static_cast<size_t>(id)]; }
  const LoadedWeight& weight(ValueId id) const {
    return c.weights->by_value[static_cast<size_t>(id)];
  }
  Matrix matrix(ValueId id) const {
    const Value& v = value(id);
    return {address(id), v.dtype, v.cols};
  }
  const float* vector(ValueId id) const { return id == kNoValue ? nullptr : weight(id).vector; }
  int32_t cols(ValueId id) const { return static_cast<int32_t>(value(id).cols); }

  Rows rows(ValueId id) const {
    const Dim& dim = value(id).rows;
    Rows rows{static_cast<int32_t>(dim.resolve(key.num_tokens, key.num_reqs)), nullptr};
    if (dim.scale == 1 && dim.kind == Dim::Kind::kTokens) rows.live = c.buffers.inputs.live_tokens;
    if (dim.scale == 1 && dim.kind == Dim::Kind::kRequests) rows.live = c.buffers.inputs.live_reqs;
    return rows;
  }
  Rows token_rows() const { return {key.num_tokens, c.buffers.inputs.live_tokens}; }
  Rows request_rows() const { return {key.num_reqs, c.buffers.inputs.live_reqs}; }

  void operator()(const PrepareInputsOp&) const {
    const StepBuffers& b = c.buffers;
    kernels::PrepareInputsArgs args;
    std::copy(std::begin(b.blocks), std::end(b.blocks), args.blocks);
    args.block_copy = b.block_copy;
    args.layout = b.layout;
    args.slots = b.slots;
    args.inputs = b.inputs;
    args.tokens = key.num_tokens;
    args.reqs = key.num_reqs;
    args.block_size = c.block_size;
    args.padded_seq_len = c.attention->padded_seq_len;
    c.kernels->prepare_inputs(c.stream_ref, args);
  }
  void operator()(const EmbedOp& op) const {
    c.kernels->embed(c.stream_ref,
                     {static_cast<const int32_t*>(address(op.ids)), weight(op.table).matrix,
                      static_cast<int32_t>(op.vocab_begin), static_cast<int32_t>(op.vocab_end),
                      matrix(op.out), rows(op.out)});
  }
  void operator()(const RmsNormOp& op) const {
    c.kernels->rms_norm(c.stream_ref, {matrix(op.in), vector(op.weight), matrix(op.out),
                                       cols(op.out), op.eps, rows(op.out)});
  }
  void operator()(const AddOp& op) const {
    c.kernels->add(c.stream_ref,
                   {matrix(op.a), matrix(op.b), matrix(op.out), cols(op.out), rows(op.out)});
  }
  void operator()(const AddRmsNormOp& op) const {
    c.kernels->add_rms_norm(c.stream_ref, {matrix(op.residual), matrix(op.delta), vector(op.weight),
                                           matrix(op.out), cols(op.out), op.eps, rows(op.out)});
  }
  void operator()(const LinearOp& op) const {
    const Matrix residual = op.residual == kNoValue ? Matrix{} : matrix(op.residual);
    c.kernels->linear(c.stream_ref, {matrix(op.in), weight(op.weight).matrix, vector(op.bias),
                                     residual, matrix(op.out), rows(op.out)});
  }
  void operator()(const SiluMulOp& op) const {
    c.kernels->silu_mul(c.stream_ref, {matrix(op.in), matrix(op.out), cols(op.out), rows(op.out)});
  }
  kernels::RopeKvWriteArgs rope_args(const RopeKvWriteOp& op) const {
    kernels::RopeKvWriteArgs args;
    args.qkv = matrix(op.qkv);
    args.positions = static_cast<const int32_t*>(address(op.positions));
    args.kv_slots = static_cast<const int64_t*>(address(op.kv_slots));
    args.cos_sin = vector(op.table);
    args.q_norm = vector(op.q_norm);
    args.k_norm = vector(op.k_norm);
    args.eps = op.eps;
    args.cache = address(op.cache);
    args.cache_dtype = value(op.cache).dtype;
    args.q_heads = static_cast<int32_t>(op.q_heads);
    args.kv_heads = static_cast<int32_t>(op.kv_heads);
    args.head_dim = static_cast<int32_t>(op.head_dim);
    args.rotary_dim = static_cast<int32_t>(op.rotary_dim);
    args.block_size = c.block_size;
    args.rows = rows(op.qkv);
    return args;
  }
  void operator()(const RopeKvWriteOp& op) const {
    c.kernels->rope_kv_write(c.stream_ref, rope_args(op));
  }
  kernels::AttentionArgs attention_args(const AttentionOp& op, ValueId q, ValueId cache) const {
    kernels::AttentionArgs args;
    args.q = matrix(q);
    args.out = matrix(op.out);
    args.cache = address(cache);
    args.cache_dtype = value(cache).dtype;
    args.inputs = c.buffers.inputs;
    args.block_table = c.buffers.slots.block_table;
    args.max_blocks = c.buffers.slots.max_blocks;
    args.q_heads = static_cast<int32_t>(op.q_heads);
    args.kv_heads = static_cast<int32_t>(op.kv_heads);
    args.head_dim = static_cast<int32_t>(op.head_dim);
    args.block_size = c.block_size;
    args.sliding_window = static_cast<int32_t>(op.sliding_window);
    args.scale = op.scale;
    if (batch != nullptr) {
      args.tokens = {batch->num_tokens, nullptr};
      args.reqs = {batch->num_reqs, nullptr};
    } else {
      args.tokens = token_rows();
      args.reqs = request_rows();
    }
    const bool uniform = batch != nullptr ? batch->uniform : key.uniform;
    args.uniform_query_len = uniform ? c.uniform_query_len : 0;
    return args;
  }
  void operator()(const AttentionOp& op) const {
    (c.kernels->*c.attention->kernel)(c.stream_ref, attention_args(op, op.q, op.cache));
  }
  void operator()(const RopeAttentionOp& op) const {
    c.kernels->rope_attention(
        c.stream_ref,
        {rope_args(op.rope), attention_args(op.attention, op.rope.qkv, op.rope.cache)});
  }
  void operator()(const FusedLinearOp& op) const {
    const auto optional = [this](ValueId id) { return id == kNoValue ? Matrix{} : matrix(id); };
    kernels::FusedLinearArgs args;
    args.linear = {matrix(op.in),         weight(op.weight).matrix, vector(op.bias),
                   optional(op.residual), matrix(op.out),           rows(op.out)};
    args.norm = vector(op.norm);
    args.eps = op.eps;
    args.delta = optional(op.delta);
    args.sum_out = optional(op.sum_out);
    args.silu_mul = op.silu_mul;
    if (op.push >= 0) args.push = c.communicator->peer_sum(*c.stream, op.push, rows(op.out));
    if (op.pull >= 0) args.pull = c.communicator->peer_sum(*c.stream, op.pull, rows(op.in));
    c.kernels->fused_linear(c.stream_ref, args);
  }
  void operator()(const SelectRowsOp& op) const {
    c.kernels->select_rows(c.stream_ref,
                           {matrix(op.in), static_cast<const int32_t*>(address(op.index)),
                            matrix(op.out), cols(op.out), rows(op.out)});
  }
  void operator()(const BestTokensOp& op) const {
    c.kernels->best_tokens(
        c.stream_ref, {matrix(op.logits), static_cast<int32_t>(op.first_token),
                       static_cast<int32_t>(op.num_tokens), static_cast<float*>(address(op.best)),
                       c.buffers.inputs, c.buffers.slots.params, request_rows()});
  }
  void operator()(const SampleOp& op) const {
    kernels::SampleArgs args;
    args.logits = static_cast<const float*>(address(op.logits));
    args.shards = static_cast<int32_t>(op.shards);
    args.shard_cols = value(op.logits).cols;
    args.shard_stride = args.shard_cols * key.num_reqs;
    if (op.best != kNoValue) args.best = static_cast<const float*>(address(op.best));
    args.vocab_size = static_cast<int32_t>(op.vocab_size);
    args.inputs = c.buffers.inputs;
    args.slots = c.buffers.slots;
    std::copy(std::begin(c.buffers.outputs), std::end(c.buffers.outputs), args.outputs);
    args.scratch = c.buffers.sample_scratch;
    args.rows = request_rows();
    c.kernels->sample(c.stream_ref, args);
  }
  void operator()(const AllReduceOp& op) const {
    c.communicator->all_reduce(*c.stream, matrix(op.value), value(op.value).cols, rows(op.value));
  }
  void operator()(const AllReduceAddRmsNormOp& op) const {
    const kernels::AddRmsNormArgs args{matrix(op.residual), matrix(op.delta), vector(op.weight),
                                       matrix(op.out),      cols(op.out),     op.eps,
                                       rows(op.out)};
    if (c.communicator->all_reduce_add_rms_norm(*c.stream, args)) return;
    c.communicator->all_reduce(*c.stream, args.delta, args.cols, args.rows);
    c.kernels->add_rms_norm(c.stream_ref, args);
  }
  void operator()(const AllGatherOp& op) const {
    Rows in = rows(op.in);
    if (op.of_logits) in.live = c.buffers.inputs.live_logits;
    c.communicator->all_gather(*c.stream, matrix(op.in), address(op.out), value(op.in).cols, in);
  }
  // Forms that the fuse pass rewrites; validate() refuses a Program that still has one.
  template <class Unfused>
  void operator()(const Unfused& op) const {
    REFRAIN_CHECK(false, "op {} reached the interpreter", op_name(Op(op)));
  }
};

}  // namespace

void launch_op(const OpContext& context, const Op& op, const BatchDescriptor& key,
               const BatchShape* batch) {
  const RangeScope range(context, [&] {
    const std::vector<ValueId> out = writes(op);
    return fmt::format("{} {} T{} R{}", op_name(op),
                       out.empty() ? "" : context.program->value(out.back()).name, key.num_tokens,
                       key.num_reqs);
  });
  std::visit(Launch{context, key, batch}, op);
}

void launch_ops(const OpContext& context, OpRange ops, const BatchDescriptor& key,
                const BatchShape* batch) {
  for (int i = ops.begin; i < ops.end; ++i) {
    launch_op(context, context.program->ops[static_cast<size_t>(i)], key, batch);
  }
}

}  // namespace refrain::worker
