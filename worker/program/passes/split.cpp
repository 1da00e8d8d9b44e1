#include <algorithm>

#include "worker/dispatch/splitting_ops.h"
#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

// CG-18, CG-19: cuts a Program at its splitting ops.

namespace refrain::worker {
namespace {

bool is_splitting(const Op& op, const std::vector<std::string>& splitting_ops) {
  return std::find(splitting_ops.begin(), splitting_ops.end(), op_name(op)) != splitting_ops.end();
}

bool carries_data(const Value& value) { return value.storage == Storage::kArena; }

void add_once(std::vector<ValueId>& ids, ValueId id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

void find_interface(const Program& program, const Uses& uses, PieceRange& piece) {
  const auto inside = [&](int op) { return op >= piece.ops.begin && op < piece.ops.end; };
  for (int i = piece.ops.begin; i < piece.ops.end; ++i) {
    const Op& op = program.ops[static_cast<size_t>(i)];
    for (const ValueId id : reads(op))
      if (carries_data(program.value(id)) && !inside(uses.def(id))) add_once(piece.inputs, id);
    for (const ValueId id : writes(op)) {
      if (!carries_data(program.value(id))) continue;
      const auto& users = uses.users(id);
      const bool read_later = !users.empty() && users.back() >= piece.ops.end;
      if (read_later || program.value(id).kind == ValueKind::kOutput) add_once(piece.outputs, id);
    }
  }
}

bool writes_tokens(const Program& program, OpRange ops) {
  for (int i = ops.begin; i < ops.end; ++i)
    for (const ValueId id : writes(program.ops[static_cast<size_t>(i)]))
      if (program.value(id).rows.extent == kTokens) return true;
  return false;
}

}  // namespace

std::vector<std::string> default_splitting_ops() {
  std::vector<std::string> names;
  for (const OpDef* def : definitions())
    if (def->splits) names.emplace_back(def->name);
  return names;
}

Result<std::vector<PieceRange>> split_program(const Program& program,
                                              const std::vector<std::string>& splitting_ops) {
  REFRAIN_RETURN_IF_ERROR(check_splitting_ops(splitting_ops));
  std::vector<PieceRange> pieces;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const bool splitting = is_splitting(program.ops[static_cast<size_t>(i)], splitting_ops);
    if (splitting || pieces.empty() || pieces.back().splitting)
      pieces.push_back({.ops = {i, i},
                        .index = static_cast<int>(pieces.size()),
                        .splitting = splitting,
                        .of_requests = false,
                        .inputs = {},
                        .outputs = {}});
    pieces.back().ops.end = i + 1;
  }
  if (pieces.size() > 1 && !pieces.back().splitting)
    pieces.back().of_requests = !writes_tokens(program, pieces.back().ops);
  const Uses uses(program);
  for (PieceRange& piece : pieces) find_interface(program, uses, piece);
  return pieces;
}

bool is_splittable(const Program& program, const std::vector<std::string>& splitting_ops) {
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [&](const Op& op) { return is_splitting(op, splitting_ops); });
}

}  // namespace refrain::worker
