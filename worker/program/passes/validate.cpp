#include <fmt/format.h>

#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

// What must hold before a Program runs. An error quotes the op as printed.

namespace refrain::worker {
namespace {

Status complain(const Program& program, const Op& op, const std::string& what) {
  return fail(ErrorCode::kInternal, "program {}: {} in \"{}\"", program.name, what,
              print(program, op));
}

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
  if (rows == value.rows.scale && value.rows.extent == kNoExtent && rows > 0) return {};
  return fail(ErrorCode::kInternal, "program {}: weight {} has {} rows, its parts {}", program.name,
              value.name, value.rows.scale, rows);
}

// Where each value stands while the ops are walked, by the operands of their definitions.
class Life {
 public:
  explicit Life(const Program& program) : program_(program), values_(program.values.size()) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const ValueKind kind = program.values[i].kind;
      // The host's inputs lie in pinned memory; other inputs are what an op makes of them.
      const bool given =
          kind == ValueKind::kWeight || kind == ValueKind::kState || program.values[i].passed ||
          (kind == ValueKind::kInput && program.values[i].storage == Storage::kPinned);
      values_[i].state = given ? State::kDefined : State::kUndefined;
    }
  }

  Status visit(const Op& op) {
    ++op_;
    Status status;
    visit_operands(op, [&](ValueId id, const Operand& operand) {
      if (status) status = visit(op, id, operand);
    });
    if (!status) return status;
    for (const InPlace& pair : in_place(op)) at(pair.from).state = State::kDead;
    if (definition(op).ends_all) ended_ = op_ - 1;
    if (definition(op).ends_itself) ended_ = op_;
    return {};
  }

 private:
  enum class State : uint8_t { kUndefined, kDefined, kDead };
  struct Standing {
    State state = State::kUndefined;
    int last_write = -1;
    int scratch_of = -1;
  };
  Standing& at(ValueId id) { return values_[static_cast<size_t>(id)]; }

  Status visit(const Op& op, ValueId id, const Operand& operand) {
    if (id == kNoValue) {
      if (operand.optional) return {};
      return complain(program_, op, fmt::format("no {}", operand.name));
    }
    if (id < 0 || id >= static_cast<ValueId>(values_.size())) {
      return fail(ErrorCode::kInternal, "program {}: op {} names value {} which is not there",
                  program_.name, op_name(op), id);
    }
    switch (operand.access) {
      case Access::kRead:
        REFRAIN_RETURN_IF_ERROR(read(op, id));
        return operand.early ? read_early(op, id) : Status{};
      case Access::kWrite:
      case Access::kInPlace:
        return define(op, id);
      case Access::kState:
        return change(op, id);
      case Access::kScratch:
        return own(op, id);
    }
    return {};
  }

  Status read(const Op& op, ValueId id) {
    const std::string& name = program_.value(id).name;
    if (at(id).state == State::kDefined) return {};
    return complain(program_, op,
                    name + (at(id).state == State::kDead ? " is read after it was changed in place"
                                                         : " is read before it is defined"));
  }

  // A linear lets its successor start only when all before it have ended (kernels/cuda/device.cuh),
  // so one must stand between who writes the value and who reads it without waiting; but for
  // writers whose successor waits for themselves.
  Status read_early(const Op& op, ValueId id) {
    if (at(id).last_write <= ended_) return {};
    return complain(program_, op,
                    fmt::format("no linear stands between {} and who writes its {}", op_name(op),
                                program_.value(id).name));
  }

  Status define(const Op& op, ValueId id) {
    if (at(id).state != State::kUndefined) {
      return complain(program_, op, program_.value(id).name + " is defined a second time");
    }
    at(id).state = State::kDefined;
    at(id).last_write = op_;
    return {};
  }

  Status change(const Op& op, ValueId id) {
    if (program_.value(id).kind != ValueKind::kState) {
      return complain(program_, op, program_.value(id).name + " is changed but is no state");
    }
    at(id).last_write = op_;
    return {};
  }

  Status own(const Op& op, ValueId id) {
    // Ops of one kind may share it: one has ended before the next writes.
    int& owner = at(id).scratch_of;
    const bool others =
        owner >= 0 && program_.ops[static_cast<size_t>(owner)].index() != op.index();
    if (program_.value(id).kind != ValueKind::kActivation || others) {
      return complain(program_, op, program_.value(id).name + " is not its own scratch memory");
    }
    owner = op_;
    return {};
  }

  const Program& program_;
  std::vector<Standing> values_;
  int op_ = -1;
  int ended_ = -1;  // what comes now starts when all ops up to this one have ended
};

}  // namespace

Status validate(const Program& program, const kernels::KernelTable& kernels) {
  Life life(program);
  const Shapes shapes{program.values, program.tensor_parallel_size, program.replicas};
  for (const Op& op : program.ops) {
    const OpDef& def = definition(op);
    REFRAIN_RETURN_IF_ERROR(life.visit(op));
    const std::string wrong = def.shape(shapes, op_data(op));
    if (!wrong.empty()) return complain(program, op, wrong);
    if (!def.has_kernel(kernels, op_data(op)))
      return complain(program, op, fmt::format("the device has no kernel for {}", def.name));
  }
  for (const Value& value : program.values)
    if (value.kind == ValueKind::kWeight) REFRAIN_RETURN_IF_ERROR(check_weight(program, value));
  return {};
}

}  // namespace refrain::worker
