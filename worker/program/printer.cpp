#include "worker/program/printer.h"

#include <fmt/format.h>

#include <cctype>

namespace refrain::worker {
namespace {

// "tokens" is T, "requests" R.
char symbol(const Extent& extent) {
  return static_cast<char>(std::toupper(static_cast<unsigned char>(extent.name.front())));
}

std::string text(const Program& program, const Dim& dim) {
  if (dim.extent == kNoExtent) return std::to_string(dim.scale);
  std::string out = dim.scale == 1 ? "" : std::to_string(dim.scale);
  out += symbol(program.extents[static_cast<size_t>(dim.extent)]);
  return dim.more == 0 ? out : fmt::format("{}+{}", out, dim.more);
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

// "state_group full paged keys=3x4 float32, values=3x4 float32 layers=2".
std::string text(const StateGroup& group) {
  std::string layout;
  if (group.kind == StateKind::kSlot) {
    layout = fmt::format("slot {} {}", group.slot.elements, to_string(group.slot.dtype));
    if (group.slot.versions > 1) layout += fmt::format(" versions={}", group.slot.versions);
  } else {
    layout = "paged";
    for (const PagedPart& part : group.paged.parts) {
      layout += fmt::format("{} {}={}x{} {}", layout == "paged" ? "" : ",", part.name, part.units,
                            part.elements, to_string(part.dtype));
    }
    if (group.window > 0) layout += fmt::format(" window={}", group.window);
  }
  return fmt::format("state_group {} {} layers={}", group.name, layout, group.layers.size());
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

std::string shape(const Program& program, const Value& value) {
  return fmt::format("{} [{}, {}]", to_string(value.dtype), text(program, value.rows), value.cols);
}

std::string print_value(const Program& program, const Value& value) {
  std::string line =
      fmt::format("{:<7}{} {}", kind_name(value.kind), value.name, shape(program, value));
  if (value.storage == Storage::kPinned) line += " pinned";
  if (value.passed) line += " passed";
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

enum class Of { kThisRank, kEveryRank };

std::string print_op(const Program& program, const Op& op, Of part) {
  std::string outs, operands, attributes;
  visit_operands(op, [&](ValueId id, const Operand& operand) {
    if (id == kNoValue || (operand.of_rank && part == Of::kEveryRank)) return;
    if (operand.writes()) {
      const Value& value = program.value(id);
      outs += (outs.empty() ? "" : ", ") + value.name;
      if (part == Of::kEveryRank)
        outs += fmt::format(" {}", to_string(value.dtype));
      else if (operand.access != Access::kState)
        outs += " " + shape(program, value);
    }
    if (operand.reads() || operand.access == Access::kScratch) {
      operands +=
          fmt::format("{}{}={}", operands.empty() ? "" : ", ", operand.name, name_of(program, id));
    }
  });
  for (const Attribute& attribute : definition(op).attributes) {
    if (attribute.of_rank && part == Of::kEveryRank) continue;
    const std::string text = attribute.text(op_data(op));
    if (!text.empty()) attributes += " " + text;
  }
  return fmt::format("{}{}{}({}){}", outs, outs.empty() ? "" : " = ", op_name(op), operands,
                     attributes);
}

}  // namespace

std::string print(const Program& program, const Op& op) {
  return print_op(program, op, Of::kThisRank);
}

std::string print_shared(const Program& program, const Op& op) {
  return print_op(program, op, Of::kEveryRank);
}

std::string print(const Program& program) {
  std::string out = fmt::format("program {} vocab_size={} max_positions={} rank={}/{}\n",
                                program.name, program.vocab_size, program.max_positions,
                                program.rank, program.tensor_parallel_size);
  for (const Extent& extent : program.extents) {
    out += fmt::format("extent {} {} live={}\n", symbol(extent), extent.name,
                       name_of(program, extent.live));
  }
  for (const StateGroup& group : program.states) out += text(group) + "\n";
  for (const Value& value : program.values)
    if (value.kind != ValueKind::kActivation) out += print_value(program, value) + "\n";
  for (size_t i = 0; i < program.ops.size(); ++i)
    out += fmt::format("{:>4}: {}\n", i, print(program, program.ops[i]));
  return out;
}

}  // namespace refrain::worker
