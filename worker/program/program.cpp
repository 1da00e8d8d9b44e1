#include "worker/program/program.h"

#include <algorithm>
#include <array>
#include <span>

#include "runtime/base/check.h"
#include "worker/dispatch/splitting_ops.h"

namespace refrain::worker {
namespace {

template <class Variant>
struct Table;
template <class... Os>
struct Table<std::variant<Os...>> {
  static constexpr std::array<OpDef, sizeof...(Os)> defs = {make_def<Os>()...};
};
constexpr auto& kDefinitions = Table<Op>::defs;
static_assert(std::ranges::equal(kOpNames, kDefinitions, {}, {},
                                 [](const OpDef& def) { return std::string_view(def.name); }),
              "kOpNames (worker/dispatch/splitting_ops.h) lists the names of all ops in order");

std::vector<ValueId> operands_that(const Op& op, bool (Operand::*wanted)() const) {
  std::vector<ValueId> ids;
  visit_operands(op, [&](ValueId id, const Operand& operand) {
    if (id != kNoValue && (operand.*wanted)()) ids.push_back(id);
  });
  return ids;
}

}  // namespace

const OpDef& definition(const Op& op) { return kDefinitions[op.index()]; }

std::vector<const OpDef*> definitions() {
  std::vector<const OpDef*> all;
  all.reserve(kDefinitions.size());
  for (const OpDef& def : kDefinitions) all.push_back(&def);
  return all;
}

const void* op_data(const Op& op) {
  return std::visit([](const auto& o) { return static_cast<const void*>(&o); }, op);
}
void* op_data(Op& op) {
  return std::visit([](auto& o) { return static_cast<void*>(&o); }, op);
}

std::vector<ValueId> reads(const Op& op) { return operands_that(op, &Operand::reads); }
std::vector<ValueId> writes(const Op& op) { return operands_that(op, &Operand::writes); }

std::vector<InPlace> in_place(const Op& op) {
  std::vector<InPlace> pairs;
  visit_operands(op, [&](ValueId id, const Operand& operand) {
    if (operand.access != Access::kInPlace) return;
    pairs.push_back({value_at(op, operand.in_place_of), id});
  });
  return pairs;
}

ExtentSizes Program::max_sizes() const {
  ExtentSizes sizes{};
  for (size_t i = 0; i < extents.size(); ++i) sizes[i] = extents[i].max;
  return sizes;
}

int paged_place(const Program& program, int group) {
  const auto groups = std::span(program.states).first(static_cast<size_t>(group));
  return static_cast<int>(std::ranges::count(groups, StateKind::kPaged, &StateGroup::kind));
}

const PrepareInputsOp& prepare_op(const Program& program) {
  const auto* op =
      program.ops.empty() ? nullptr : std::get_if<PrepareInputsOp>(&program.ops.front());
  REFRAIN_CHECK(op != nullptr, "program {} does not begin with prepare_inputs", program.name);
  return *op;
}

const AcceptDraftsOp* accept_op(const Program& program) {
  return program.ops.empty() ? nullptr : std::get_if<AcceptDraftsOp>(&program.ops.back());
}

const PoolOp* pool_op(const Program& program) {
  return program.ops.empty() ? nullptr : std::get_if<PoolOp>(&program.ops.back());
}

const SampleOp& sample_op(const Program& program) {
  const size_t behind = accept_op(program) == nullptr ? 1 : 2;
  const auto* op = program.ops.size() < behind
                       ? nullptr
                       : std::get_if<SampleOp>(&program.ops[program.ops.size() - behind]);
  REFRAIN_CHECK(op != nullptr, "program {} does not end in sample", program.name);
  return *op;
}

}  // namespace refrain::worker
