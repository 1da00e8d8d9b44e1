#include "worker/program/printer.h"

#include <fmt/format.h>

#include "worker/program/fields.h"

namespace refrain::worker {
namespace {

std::string text(const Dim& dim) {
  if (dim.kind == Dim::Kind::kConst) return std::to_string(dim.scale);
  const char* symbol = dim.kind == Dim::Kind::kTokens ? "T" : "R";
  return dim.scale == 1 ? symbol : fmt::format("{}{}", dim.scale, symbol);
}

const char* text(Parallel parallel) {
  switch (parallel) {
    case Parallel::kReplicated:
      return "replicated";
    case Parallel::kColumn:
      return "column";
    case Parallel::kRow:
      return "row";
    case Parallel::kVocab:
      return "vocab";
  }
  return "?";
}

std::string name_of(const Program& program, ValueId id) {
  return id == kNoValue ? "-" : program.value(id).name;
}

// "q_proj.weight[0:16, :]", parts joined by " | ", padding as "+ 4 zero rows".
std::string text(const WeightPart& part) {
  const auto range = [](int64_t begin, int64_t end, int64_t all) {
    return begin == 0 && end == all ? std::string(":") : fmt::format("{}:{}", begin, end);
  };
  const std::string rows = range(part.row_begin, part.row_end, part.tensor_rows);
  const std::string cols = range(part.col_begin, part.col_end, part.tensor_cols);
  std::string out = part.tensor;
  if (rows != ":" || cols != ":") out += fmt::format("[{}, {}]", rows, cols);
  if (part.pad_rows > 0) out += fmt::format(" + {} zero rows", part.pad_rows);
  return out;
}

const char* kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kActivation:
      return "activation";
    case ValueKind::kWeight:
      return "weight";
    case ValueKind::kInput:
      return "input";
    case ValueKind::kState:
      return "state";
    case ValueKind::kOutput:
      return "output";
  }
  return "?";
}

std::string shape(const Value& value) {
  return fmt::format("{} [{}, {}]", to_string(value.dtype), text(value.rows), value.cols);
}

std::string print_value(const Value& value) {
  std::string line = fmt::format("{:<7}{} {}", kind_name(value.kind), value.name, shape(value));
  if (value.use == WeightUse::kRopeTable && value.kind == ValueKind::kWeight) line += " = computed";
  const char* separator = " = ";
  const bool plain = value.parts.size() == 1 && text(value.parts[0]) == value.name;
  for (const WeightPart& part : value.parts) {
    if (plain) break;
    line += separator + text(part);
    separator = " | ";
  }
  return line;
}

// What an op has besides its operands.
struct Attributes {
  std::string operator()(const EmbedOp& op) const {
    return fmt::format(" vocab={}:{}", op.vocab_begin, op.vocab_end);
  }
  std::string operator()(const RmsNormOp& op) const {
    return op.group == 0 ? fmt::format(" eps={}", op.eps)
                         : fmt::format(" eps={} group={}", op.eps, op.group);
  }
  std::string operator()(const AddRmsNormOp& op) const { return fmt::format(" eps={}", op.eps); }
  std::string operator()(const AllReduceAddRmsNormOp& op) const {
    return fmt::format(" eps={}", op.eps);
  }
  std::string operator()(const LinearOp& op) const { return fmt::format(" {}", text(op.parallel)); }
  std::string operator()(const RopeOp& op) const {
    return fmt::format(" heads={}x{} rotary={}", op.heads, op.head_dim, op.rotary_dim);
  }
  std::string operator()(const KvWriteOp& op) const {
    return fmt::format(" kv_heads={}x{}", op.kv_heads, op.head_dim);
  }
  std::string operator()(const RopeKvWriteOp& op) const {
    std::string out = fmt::format(" q_heads={} kv_heads={} head_dim={} rotary={}", op.q_heads,
                                  op.kv_heads, op.head_dim, op.rotary_dim);
    return op.q_norm == kNoValue ? out : out + fmt::format(" eps={}", op.eps);
  }
  std::string operator()(const AttentionOp& op) const {
    std::string out = fmt::format(" layer={} q_heads={} kv_heads={} head_dim={} scale={}", op.layer,
                                  op.q_heads, op.kv_heads, op.head_dim, op.scale);
    return op.sliding_window == 0 ? out : out + fmt::format(" window={}", op.sliding_window);
  }
  std::string operator()(const FusedLinearOp& op) const {
    std::string out = op.norm == kNoValue ? "" : fmt::format(" eps={}", op.eps);
    if (op.silu_mul) out += " silu_mul";
    if (op.pull >= 0) out += fmt::format(" pull={}", op.pull);
    return op.push >= 0 ? out + fmt::format(" push={}", op.push) : out;
  }
  std::string operator()(const RopeAttentionOp& op) const {
    return (*this)(op.rope) + (*this)(op.attention);
  }
  std::string operator()(const AllGatherOp& op) const { return op.of_logits ? " of_logits" : ""; }
  std::string operator()(const BestTokensOp& op) const {
    return fmt::format(" tokens={}:{}", op.first_token, op.first_token + op.num_tokens);
  }
  std::string operator()(const SampleOp& op) const {
    return fmt::format(" shards={} vocab_size={}", op.shards, op.vocab_size);
  }
  template <class T>
  std::string operator()(const T&) const {
    return {};
  }
};

}  // namespace

std::string print(const Program& program, const Op& op) {
  std::string outs, operands;
  visit_fields(op, [&](ValueId id, Access access, const char* field) {
    if (id == kNoValue) return;
    if (access != Access::kRead) {
      const Value& value = program.value(id);
      outs += (outs.empty() ? "" : ", ") + value.name;
      if (access == Access::kWrite) outs += " " + shape(value);
    }
    if (access != Access::kWrite)
      operands += fmt::format("{}{}={}", operands.empty() ? "" : ", ", field, name_of(program, id));
  });
  return fmt::format("{}{}{}({}){}", outs, outs.empty() ? "" : " = ", op_name(op), operands,
                     std::visit(Attributes{}, op));
}

std::string print(const Program& program) {
  std::string out = fmt::format("program {} vocab_size={} max_positions={} rank={}/{}\n",
                                program.name, program.vocab_size, program.max_positions,
                                program.rank, program.tensor_parallel_size);
  for (size_t i = 0; i < program.kv_groups.size(); ++i) {
    const KvGroup& group = program.kv_groups[i];
    out += fmt::format("kv_group {} kv_heads={} head_dim={} layers={}\n", i, group.kv_heads,
                       group.head_dim, group.num_layers);
  }
  for (const Value& value : program.values)
    if (value.kind != ValueKind::kActivation) out += print_value(value) + "\n";
  for (size_t i = 0; i < program.ops.size(); ++i)
    out += fmt::format("{:>4}: {}\n", i, print(program, program.ops[i]));
  return out;
}

}  // namespace refrain::worker
