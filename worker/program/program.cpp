#include "worker/program/program.h"

#include "worker/program/fields.h"

namespace refrain::worker {
namespace {

constexpr const char* kOpNames[] = {"prepare_inputs",
                                    "embed",
                                    "rms_norm",
                                    "add",
                                    "add_rms_norm",
                                    "linear",
                                    "silu_mul",
                                    "silu_gate",
                                    "rope",
                                    "kv_write",
                                    "rope_kv_write",
                                    "attention",
                                    "select_rows",
                                    "best_tokens",
                                    "sample",
                                    "all_reduce",
                                    "all_reduce_add_rms_norm",
                                    "all_gather",
                                    "fused_linear",
                                    "rope_attention"};
static_assert(std::size(kOpNames) == std::variant_size_v<Op>);

std::vector<ValueId> with_access(const Op& op, Access wanted) {
  std::vector<ValueId> ids;
  visit_fields(op, [&](ValueId id, Access access, const char*) {
    if (id != kNoValue && (access == wanted || access == Access::kReadWrite)) ids.push_back(id);
  });
  return ids;
}

}  // namespace

std::vector<ValueId> reads(const Op& op) { return with_access(op, Access::kRead); }
std::vector<ValueId> writes(const Op& op) { return with_access(op, Access::kWrite); }

std::vector<InPlace> in_place(const Op& op) {
  if (const auto* add = std::get_if<AddRmsNormOp>(&op)) return {{add->residual, add->residual_out}};
  if (const auto* add = std::get_if<AllReduceAddRmsNormOp>(&op)) {
    return {{add->residual, add->residual_out}};
  }
  if (const auto* rope = std::get_if<RopeKvWriteOp>(&op)) return {{rope->qkv, rope->out}};
  if (const auto* reduce = std::get_if<AllReduceOp>(&op)) return {{reduce->value, reduce->out}};
  return {};
}

const char* op_name(const Op& op) { return kOpNames[op.index()]; }

std::vector<std::string> op_names() { return {std::begin(kOpNames), std::end(kOpNames)}; }

bool is_collective(const Op& op) {
  return std::holds_alternative<AllReduceOp>(op) ||
         std::holds_alternative<AllReduceAddRmsNormOp>(op) ||
         std::holds_alternative<AllGatherOp>(op);
}

}  // namespace refrain::worker
