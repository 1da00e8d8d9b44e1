#include <fmt/format.h>

#include "worker/program/fields.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

// What must hold before a Program runs. An error quotes the op as printed.

namespace refrain::worker {
namespace {

using kernels::KernelTable;

Status complain(const Program& program, const Op& op, const std::string& what) {
  return fail(ErrorCode::kInternal, "program {}: {} in \"{}\"", program.name, what,
              print(program, op));
}

// Whether the device has what the op launches. Collectives are the communicator's.
struct HasKernel {
  const KernelTable& table;
  bool operator()(const PrepareInputsOp&) const { return table.prepare_inputs != nullptr; }
  bool operator()(const EmbedOp&) const { return table.embed != nullptr; }
  bool operator()(const RmsNormOp& op) const { return table.rms_norm != nullptr && op.group == 0; }
  bool operator()(const AddOp&) const { return table.add != nullptr; }
  bool operator()(const AddRmsNormOp&) const { return table.add_rms_norm != nullptr; }
  bool operator()(const LinearOp&) const { return table.linear != nullptr; }
  bool operator()(const SiluMulOp&) const { return table.silu_mul != nullptr; }
  bool operator()(const SiluGateOp&) const { return false; }
  bool operator()(const RopeOp&) const { return false; }
  bool operator()(const KvWriteOp&) const { return false; }
  bool operator()(const RopeKvWriteOp&) const { return table.rope_kv_write != nullptr; }
  bool operator()(const AttentionOp&) const { return table.attention != nullptr; }
  bool operator()(const SelectRowsOp&) const { return table.select_rows != nullptr; }
  bool operator()(const BestTokensOp&) const { return table.best_tokens != nullptr; }
  bool operator()(const SampleOp&) const { return table.sample != nullptr; }
  bool operator()(const AllReduceOp&) const { return true; }
  bool operator()(const AllReduceAddRmsNormOp&) const { return table.add_rms_norm != nullptr; }
  bool operator()(const AllGatherOp&) const { return true; }
  bool operator()(const FusedLinearOp&) const { return table.fused_linear != nullptr; }
  bool operator()(const RopeAttentionOp&) const { return table.rope_attention != nullptr; }
};

// First disagreement of an op's shapes and types; empty: none.
struct ShapeRules {
  const Program& program;

  const Value& v(ValueId id) const { return program.value(id); }
  static std::string expect(bool holds, const char* rule) { return holds ? "" : rule; }
  bool same_shape(ValueId a, ValueId b) const {
    return v(a).rows == v(b).rows && v(a).cols == v(b).cols && v(a).dtype == v(b).dtype;
  }
  bool is_vector(ValueId id, int64_t size) const {
    return id == kNoValue || (v(id).kind == ValueKind::kWeight && v(id).rows.scale == size &&
                              v(id).dtype == DType::kFloat32);
  }

  std::string operator()(const PrepareInputsOp&) const { return {}; }
  std::string operator()(const EmbedOp& op) const {
    const int64_t held = op.vocab_end - op.vocab_begin;
    return expect(v(op.ids).rows == v(op.out).rows && v(op.table).cols == v(op.out).cols &&
                      held >= 0 && held <= v(op.table).rows.scale,
                  "ids, table and result disagree");
  }
  std::string operator()(const RmsNormOp& op) const {
    return expect(
        same_shape(op.in, op.out) && is_vector(op.weight, op.group == 0 ? v(op.in).cols : op.group),
        "input, weight and result disagree");
  }
  std::string operator()(const AddOp& op) const {
    return expect(same_shape(op.a, op.b) && same_shape(op.a, op.out), "the two terms disagree");
  }
  template <class AddNorm>
  std::string add_norm(const AddNorm& op) const {
    return expect(same_shape(op.residual, op.delta) && same_shape(op.residual, op.residual_out) &&
                      same_shape(op.residual, op.out) && is_vector(op.weight, v(op.out).cols),
                  "residual, delta, weight and result disagree");
  }
  std::string operator()(const AddRmsNormOp& op) const { return add_norm(op); }
  std::string operator()(const AllReduceAddRmsNormOp& op) const { return add_norm(op); }
  std::string operator()(const LinearOp& op) const {
    const Value &in = v(op.in), &weight = v(op.weight), &out = v(op.out);
    if (weight.kind != ValueKind::kWeight || weight.use != WeightUse::kMatrix)
      return "weight is not a matrix";
    if (weight.dtype == DType::kBFloat16 && weight.cols % 2 != 0)
      return fmt::format("a bfloat16 weight needs an even number of columns, not {}", weight.cols);
    if (in.cols != weight.cols)
      return fmt::format("input has {} columns, weight {}", in.cols, weight.cols);
    if (out.cols != weight.rows.scale || in.rows != out.rows) return "weight and result disagree";
    if (!is_vector(op.bias, out.cols)) return "bias and result disagree";
    return expect(op.residual == kNoValue ||
                      (v(op.residual).rows == out.rows && v(op.residual).cols == out.cols),
                  "residual and result disagree");
  }
  std::string operator()(const SiluMulOp& op) const {
    return expect(v(op.in).cols == 2 * v(op.out).cols && v(op.in).rows == v(op.out).rows,
                  "the input must be twice as wide as the result");
  }
  std::string operator()(const SiluGateOp& op) const {
    return expect(same_shape(op.gate, op.up) && same_shape(op.gate, op.out),
                  "gate, up and result disagree");
  }
  std::string operator()(const RopeOp& op) const {
    return expect(same_shape(op.in, op.out) && v(op.in).cols == op.heads * op.head_dim &&
                      rotary_fits(op.rotary_dim, op.head_dim, op.table),
                  "heads, table and result disagree");
  }
  std::string operator()(const KvWriteOp& op) const {
    return expect(same_shape(op.k, op.v) && v(op.k).cols == op.kv_heads * op.head_dim &&
                      v(op.cache).kind == ValueKind::kState,
                  "k, v and cache disagree");
  }
  std::string operator()(const RopeKvWriteOp& op) const {
    return expect(same_shape(op.qkv, op.out) &&
                      v(op.qkv).cols == (op.q_heads + 2 * op.kv_heads) * op.head_dim &&
                      rotary_fits(op.rotary_dim, op.head_dim, op.table) &&
                      is_vector(op.q_norm, op.head_dim) && is_vector(op.k_norm, op.head_dim) &&
                      (op.q_norm == kNoValue) == (op.k_norm == kNoValue) &&
                      v(op.cache).kind == ValueKind::kState,
                  "heads, table, norms and cache disagree");
  }
  std::string operator()(const AttentionOp& op) const {
    return expect(v(op.q).cols >= op.q_heads * op.head_dim &&
                      v(op.out).cols == op.q_heads * op.head_dim &&
                      v(op.q).rows == v(op.out).rows && op.kv_heads > 0 &&
                      op.q_heads % op.kv_heads == 0 && v(op.cache).kind == ValueKind::kState,
                  "heads, q, cache and result disagree");
  }
  std::string operator()(const SelectRowsOp& op) const {
    return expect(v(op.in).cols == v(op.out).cols && v(op.in).dtype == v(op.out).dtype &&
                      v(op.index).rows == v(op.out).rows,
                  "input, index and result disagree");
  }
  bool is_best(ValueId id, int64_t shards) const {
    return v(id).dtype == DType::kFloat32 && v(id).rows == Dim::requests(shards) &&
           v(id).cols == int64_t{2} * kernels::kBestParts;
  }
  std::string operator()(const BestTokensOp& op) const {
    return expect(v(op.logits).dtype == DType::kFloat32 && v(op.logits).rows == Dim::requests() &&
                      is_best(op.best, 1) && op.first_token >= 0 && op.num_tokens >= 0 &&
                      op.num_tokens <= v(op.logits).cols,
                  "logits, tokens and result disagree");
  }
  std::string operator()(const SampleOp& op) const {
    return expect(v(op.logits).dtype == DType::kFloat32 && op.shards > 0 &&
                      v(op.logits).rows == Dim::requests(op.shards) &&
                      v(op.logits).cols * op.shards >= op.vocab_size &&
                      (op.best == kNoValue ? op.shards == 1 : is_best(op.best, op.shards)),
                  "shards, logits, best tokens and vocabulary disagree");
  }
  std::string operator()(const AllReduceOp& op) const {
    return expect(same_shape(op.value, op.out), "value and result disagree");
  }
  std::string operator()(const AllGatherOp& op) const {
    return expect(v(op.in).cols == v(op.out).cols && v(op.in).dtype == v(op.out).dtype &&
                      v(op.in).rows.kind == v(op.out).rows.kind &&
                      v(op.in).rows.scale * program.tensor_parallel_size == v(op.out).rows.scale,
                  "input and result disagree");
  }
  std::string operator()(const FusedLinearOp& op) const {
    const Value &weight = v(op.weight), &out = v(op.out);
    if (weight.kind != ValueKind::kWeight || v(op.in).cols != weight.cols ||
        v(op.in).rows != out.rows || weight.rows.scale != out.cols * (op.silu_mul ? 2 : 1)) {
      return "input, weight and result disagree";
    }
    if (!is_vector(op.norm, weight.cols) || !is_vector(op.bias, out.cols)) {
      return "norm, bias and weight disagree";
    }
    if (op.silu_mul && (op.bias != kNoValue || op.residual != kNoValue)) {
      return "silu_mul takes no bias and no residual";
    }
    if ((op.delta == kNoValue) != (op.sum_out == kNoValue) ||
        (op.delta != kNoValue &&
         (op.norm == kNoValue || !same_shape(op.in, op.delta) || !same_shape(op.in, op.sum_out)))) {
      return "delta and sum belong together, with a norm";
    }
    return expect(op.residual == kNoValue || same_shape(op.residual, op.out),
                  "residual and result disagree");
  }
  std::string operator()(const RopeAttentionOp& op) const {
    const RopeKvWriteOp& rope = op.rope;
    return expect(v(rope.qkv).cols == (rope.q_heads + 2 * rope.kv_heads) * rope.head_dim &&
                      rotary_fits(rope.rotary_dim, rope.head_dim, rope.table) &&
                      is_vector(rope.q_norm, rope.head_dim) &&
                      is_vector(rope.k_norm, rope.head_dim) &&
                      v(rope.cache).kind == ValueKind::kState &&
                      v(op.attention.out).cols == rope.q_heads * rope.head_dim &&
                      v(rope.qkv).rows == v(op.attention.out).rows,
                  "heads, table, norms, cache and result disagree");
  }
  bool rotary_fits(int64_t rotary, int64_t head_dim, ValueId table) const {
    return rotary > 0 && rotary % 2 == 0 && rotary <= head_dim && v(table).cols == rotary;
  }
};

// Parts add up to the value, and each lies within its tensor.
Status check_weight(const Program& program, const Value& value) {
  if (value.use == WeightUse::kRopeTable) return {};
  int64_t rows = 0;
  for (const WeightPart& part : value.parts) {
    const bool inside = part.row_begin >= 0 && part.row_begin <= part.row_end &&
                        part.row_end <= part.tensor_rows && part.col_begin >= 0 &&
                        part.col_begin < part.col_end && part.col_end <= part.tensor_cols &&
                        part.pad_rows >= 0;
    if (!inside || part.col_end - part.col_begin != value.cols)
      return fail(ErrorCode::kInternal, "program {}: weight {} takes what {} does not have",
                  program.name, value.name, part.tensor);
    rows += part.row_end - part.row_begin + part.pad_rows;
  }
  if (rows == value.rows.scale && value.rows.kind == Dim::Kind::kConst && rows > 0) return {};
  return fail(ErrorCode::kInternal, "program {}: weight {} has {} rows, its parts {}", program.name,
              value.name, value.rows.scale, rows);
}

// Where each value stands while the ops are walked.
class Life {
 public:
  explicit Life(const Program& program) : program_(program), state_(program.values.size()) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      const ValueKind kind = program.values[i].kind;
      const bool made = kind == ValueKind::kActivation || kind == ValueKind::kOutput;
      state_[i] = made ? State::kUndefined : State::kDefined;
    }
  }

  Status visit(const Op& op) {
    Status status;
    visit_fields(op, [&](ValueId id, Access access, const char* field) {
      if (!status) return;
      if (id == kNoValue) {
        status =
            optional(op, field) ? Status{} : complain(program_, op, fmt::format("no {}", field));
      } else if (id < 0 || id >= static_cast<ValueId>(state_.size())) {
        status = fail(ErrorCode::kInternal, "program {}: op {} names value {} which is not there",
                      program_.name, op_name(op), id);
      } else if (access == Access::kWrite) {
        status = define(op, id);
      } else if (state_[static_cast<size_t>(id)] != State::kDefined) {
        status = complain(program_, op,
                          program_.value(id).name + (state_[static_cast<size_t>(id)] == State::kDead
                                                         ? " is read after it was changed in place"
                                                         : " is read before it is defined"));
      }
    });
    if (status)
      for (const InPlace& pair : in_place(op))
        state_[static_cast<size_t>(pair.from)] = State::kDead;
    return status;
  }

 private:
  enum class State : uint8_t { kUndefined, kDefined, kDead };

  static bool optional(const Op& op, const std::string& field) {
    return (std::holds_alternative<LinearOp>(op) && (field == "bias" || field == "residual")) ||
           (std::holds_alternative<SampleOp>(op) && field == "best") ||
           ((std::holds_alternative<RopeKvWriteOp>(op) ||
             std::holds_alternative<RopeAttentionOp>(op)) &&
            (field == "q_norm" || field == "k_norm")) ||
           (std::holds_alternative<FusedLinearOp>(op) && field != "in" && field != "weight" &&
            field != "out");
  }

  Status define(const Op& op, ValueId id) {
    State& state = state_[static_cast<size_t>(id)];
    if (state != State::kUndefined)
      return complain(program_, op, program_.value(id).name + " is defined a second time");
    state = State::kDefined;
    return {};
  }

  const Program& program_;
  std::vector<State> state_;
};

// CUDA's attention reads lengths and block tables before its predecessor has ended. That is safe
// because a linear lets its successor start only when all before it have ended
// (kernels/cuda/device.cuh), so one must stand between it and the op that writes them.
class EarlyReads {
 public:
  bool safe(const Op& op) {
    if (std::holds_alternative<PrepareInputsOp>(op)) pending_ = true;
    if (std::holds_alternative<LinearOp>(op) || std::holds_alternative<FusedLinearOp>(op))
      pending_ = false;
    return !pending_ || !(std::holds_alternative<AttentionOp>(op) ||
                          std::holds_alternative<RopeAttentionOp>(op));
  }

 private:
  bool pending_ = false;  // prepare_inputs may not have ended
};

}  // namespace

Status validate(const Program& program, const KernelTable& kernels) {
  Life life(program);
  EarlyReads early_reads;
  for (const Op& op : program.ops) {
    REFRAIN_RETURN_IF_ERROR(life.visit(op));
    if (!early_reads.safe(op))
      return complain(program, op, "no linear stands between prepare_inputs and attention");
    const std::string wrong = std::visit(ShapeRules{program}, op);
    if (!wrong.empty()) return complain(program, op, wrong);
    if (!std::visit(HasKernel{kernels}, op))
      return complain(program, op, fmt::format("the device has no kernel for {}", op_name(op)));
  }
  for (const Value& value : program.values)
    if (value.kind == ValueKind::kWeight) REFRAIN_RETURN_IF_ERROR(check_weight(program, value));
  return {};
}

}  // namespace refrain::worker
