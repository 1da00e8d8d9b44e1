#include <algorithm>
#include <optional>

#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

// Three rewritings, each on its own walk over the ops: attention input (q|k|v projection and
// RoPE + KV write), MLP input (gate|up projection and SiLU·mul), residual add + RMSNorm.

namespace refrain::worker {
namespace {

// Ops to remove and to put in place of others, applied when the walk is over.
struct Edits {
  explicit Edits(const Program& program)
      : remove(program.ops.size(), false), replace(program.ops.size()) {}
  std::vector<bool> remove;
  std::vector<std::vector<Op>> replace;  // by op index: what stands there instead

  void apply(Program& program) {
    std::vector<Op> ops;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      if (!replace[i].empty())
        ops.insert(ops.end(), replace[i].begin(), replace[i].end());
      else if (!remove[i])
        ops.push_back(program.ops[i]);
    }
    program.ops = std::move(ops);
    compact(program, {});
  }
};

// Column-parallel projections of one input, all with a bias or none, each output used once.
bool can_merge(const Program& program, const Uses& uses,
               const std::vector<const LinearOp*>& linears) {
  const LinearOp& first = *linears.front();
  return std::all_of(linears.begin(), linears.end(), [&](const LinearOp* linear) {
    return linear->in == first.in && linear->parallel == Parallel::kColumn &&
           linear->residual == kNoValue && uses.used_once(linear->out) &&
           (linear->bias == kNoValue) == (first.bias == kNoValue) &&
           program.value(linear->out).kind == ValueKind::kActivation;
  });
}

ValueId stack_weights(Program& program, const std::vector<ValueId>& weights,
                      const std::string& name) {
  Value stacked = program.value(weights.front());
  stacked.name = name;
  stacked.rows = Dim::constant(0);
  stacked.parts.clear();
  for (const ValueId id : weights) {
    const Value& value = program.value(id);
    stacked.rows.scale += value.rows.scale;
    stacked.parts.insert(stacked.parts.end(), value.parts.begin(), value.parts.end());
  }
  for (size_t i = 0; i < program.values.size(); ++i) {  // of a pass before
    const Value& value = program.values[i];
    if (value.kind == ValueKind::kWeight && value.name == stacked.name)
      return static_cast<ValueId>(i);
  }
  return add_value(program, std::move(stacked));
}

// "a.b.q_proj" and "qkv_proj" -> "a.b.qkv_proj".
std::string sibling(const std::string& name, const std::string& leaf) {
  return name.substr(0, name.rfind('.') + 1) + leaf;
}

// One Linear whose weight, bias and output are those of `linears` side by side.
LinearOp merge(Program& program, const std::vector<const LinearOp*>& linears,
               const std::string& leaf) {
  LinearOp merged = *linears.front();
  std::vector<ValueId> weights, biases;
  Value out = program.value(merged.out);
  out.name = sibling(out.name, leaf);
  out.cols = 0;
  for (const LinearOp* linear : linears) {
    weights.push_back(linear->weight);
    biases.push_back(linear->bias);
    out.cols += program.value(linear->out).cols;
  }
  const std::string& first = program.value(weights.front()).name;  // "a.b.q_proj.weight"
  const std::string name = sibling(first.substr(0, first.rfind('.')), leaf);
  merged.weight = stack_weights(program, weights, name + ".weight");
  if (merged.bias != kNoValue) merged.bias = stack_weights(program, biases, name + ".bias");
  merged.out = add_value(program, std::move(out));
  return merged;
}

// The chain linear -> [RMSNorm of each head] -> RoPE that makes q or k.
struct HeadChain {
  const RopeOp* rope = nullptr;
  const RmsNormOp* norm = nullptr;
  const LinearOp* linear = nullptr;
};

HeadChain match_chain(const Program& program, const Uses& uses, ValueId value) {
  HeadChain chain;
  chain.rope = def_as<RopeOp>(program, uses, value);
  if (chain.rope == nullptr || !uses.used_once(value)) return {};
  ValueId in = chain.rope->in;
  chain.norm = def_as<RmsNormOp>(program, uses, in);
  if (chain.norm != nullptr) {
    if (chain.norm->group != chain.rope->head_dim || !uses.used_once(in)) return {};
    in = chain.norm->in;
  }
  chain.linear = def_as<LinearOp>(program, uses, in);
  return chain;
}

// What comes before an attention op, when all of it can become one projection and one op.
struct AttentionInput {
  HeadChain q, k;
  const LinearOp* v = nullptr;
  const KvWriteOp* write = nullptr;
};

std::optional<AttentionInput> match_attention_input(const Program& program, const Uses& uses,
                                                    size_t attention_index) {
  const auto* attention = std::get_if<AttentionOp>(&program.ops[attention_index]);
  if (attention == nullptr || attention_index == 0) return std::nullopt;
  AttentionInput input;
  input.write = std::get_if<KvWriteOp>(&program.ops[attention_index - 1]);
  if (input.write == nullptr || input.write->cache != attention->cache) return std::nullopt;
  input.q = match_chain(program, uses, attention->q);
  input.k = match_chain(program, uses, input.write->k);
  input.v = def_as<LinearOp>(program, uses, input.write->v);
  const auto& [q, k, v, write] = input;
  if (q.linear == nullptr || k.linear == nullptr || v == nullptr) return std::nullopt;
  if ((q.norm == nullptr) != (k.norm == nullptr)) return std::nullopt;
  if (q.norm != nullptr && q.norm->eps != k.norm->eps) return std::nullopt;
  if (q.rope->table != k.rope->table || q.rope->positions != k.rope->positions) return std::nullopt;
  if (!can_merge(program, uses, {q.linear, k.linear, v})) return std::nullopt;
  return input;
}

// The three ops that take the place of the matched ones and the attention op.
std::vector<Op> fused_attention(Program& program, const AttentionInput& input,
                                AttentionOp attention) {
  const auto& [q, k, v, write] = input;
  const LinearOp qkv = merge(program, {q.linear, k.linear, v}, "qkv_proj");
  Value rotated = program.value(qkv.out);
  rotated.name = sibling(rotated.name, "qkv_rope");
  RopeKvWriteOp rope{.qkv = qkv.out,
                     .positions = q.rope->positions,
                     .kv_slots = write->kv_slots,
                     .table = q.rope->table,
                     .cache = write->cache,
                     .out = add_value(program, std::move(rotated)),
                     .q_heads = attention.q_heads,
                     .kv_heads = attention.kv_heads,
                     .head_dim = attention.head_dim,
                     .rotary_dim = q.rope->rotary_dim};
  if (q.norm != nullptr) {
    rope.q_norm = q.norm->weight;
    rope.k_norm = k.norm->weight;
    rope.eps = q.norm->eps;
  }
  attention.q = rope.out;
  return {qkv, rope, attention};
}

void fuse_attention_input(Program& program) {
  const Uses uses(program);
  const Program before = program;
  Edits edits(program);
  for (size_t i = 0; i < before.ops.size(); ++i) {
    const auto input = match_attention_input(before, uses, i);
    if (!input) continue;
    const auto& [q, k, v, write] = *input;
    edits.replace[i] = fused_attention(program, *input, std::get<AttentionOp>(before.ops[i]));
    edits.remove[i - 1] = true;
    std::vector<ValueId> gone = {q.rope->out, k.rope->out, q.linear->out, k.linear->out, v->out};
    if (q.norm != nullptr) gone.insert(gone.end(), {q.norm->out, k.norm->out});
    for (const ValueId id : gone) edits.remove[static_cast<size_t>(uses.def(id))] = true;
  }
  edits.apply(program);
}

void fuse_mlp_input(Program& program) {
  const Uses uses(program);
  const Program before = program;
  Edits edits(program);
  for (size_t i = 0; i < before.ops.size(); ++i) {
    const auto* silu = std::get_if<SiluGateOp>(&before.ops[i]);
    if (silu == nullptr) continue;
    const auto* gate = def_as<LinearOp>(before, uses, silu->gate);
    const auto* up = def_as<LinearOp>(before, uses, silu->up);
    if (gate == nullptr || up == nullptr || !can_merge(before, uses, {gate, up})) continue;
    const LinearOp gate_up = merge(program, {gate, up}, "gate_up_proj");
    edits.remove[static_cast<size_t>(uses.def(gate->out))] = true;
    edits.remove[static_cast<size_t>(uses.def(up->out))] = true;
    edits.replace[i] = {gate_up, SiluMulOp{.in = gate_up.out, .out = silu->out}};
  }
  edits.apply(program);
}

// The addition is in place, so the old residual must have no reader after it.
void fuse_add_norm(Program& program) {
  const Uses uses(program);
  Edits edits(program);
  for (size_t i = 0; i + 1 < program.ops.size(); ++i) {
    const auto* add = std::get_if<AddOp>(&program.ops[i]);
    const auto* norm = std::get_if<RmsNormOp>(&program.ops[i + 1]);
    if (add == nullptr || norm == nullptr || norm->in != add->out || norm->group != 0) continue;
    if (uses.users(add->a).back() > static_cast<int>(i) || uses.def(add->a) < 0) continue;
    if (program.value(add->a).kind != ValueKind::kActivation || add->a == add->b) continue;
    edits.replace[i] = {AddRmsNormOp{.residual = add->a,
                                     .delta = add->b,
                                     .weight = norm->weight,
                                     .residual_out = add->out,
                                     .out = norm->out,
                                     .eps = norm->eps}};
    edits.remove[i + 1] = true;
  }
  edits.apply(program);
}

}  // namespace

Program fuse_all_rows(Program program) {
  fuse_attention_input(program);
  fuse_mlp_input(program);
  fuse_add_norm(program);
  compact(program, {});
  return program;
}

Program fuse(Program program) { return select_rows_early(fuse_all_rows(std::move(program))); }

}  // namespace refrain::worker
