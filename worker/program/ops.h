#pragma once
// All ops there are, and what derives from their definitions (op_def.h).

#include <cstddef>
#include <variant>
#include <vector>

#include "worker/program/ops/attention.h"
#include "worker/program/ops/collectives.h"
#include "worker/program/ops/draft_head.h"
#include "worker/program/ops/drafts.h"
#include "worker/program/ops/elementwise.h"
#include "worker/program/ops/linear.h"
#include "worker/program/ops/lora.h"
#include "worker/program/ops/pool.h"
#include "worker/program/ops/publish.h"
#include "worker/program/ops/recurrence.h"
#include "worker/program/ops/replicas.h"
#include "worker/program/ops/score.h"
#include "worker/program/ops/step.h"

namespace refrain::worker {

using Op =
    std::variant<PrepareInputsOp, EmbedOp, RmsNormOp, AddOp, AddRmsNormOp, LinearOp, SiluMulOp,
                 SiluGateOp, RopeOp, KvWriteOp, RopeKvWriteOp, ShareKeysOp, AttentionOp,
                 SelectRowsOp, BestTokensOp, SampleOp, AllReduceOp, AllReduceAddRmsNormOp,
                 AllGatherOp, FusedLinearOp, RopeAttentionOp, LinearRecurrenceOp, ProposeNgramOp,
                 AcceptDraftsOp, ProposeDraftsOp, DraftInputsOp, LoraRowsOp, LoraShrinkOp,
                 LoraEmbedOp, LoraExpandOp, LoraLinearOp, ScoreTokensOp, NextTokensOp, ConcatOp,
                 MapLogitsOp, PoolOp, GatherReplicasOp, ReduceReplicasOp, PublishLayerOp>;

const OpDef& definition(const Op& op);
std::vector<const OpDef*> definitions();  // of every op there is
inline const char* op_name(const Op& op) { return definition(op).name; }

// The op itself, for the functions of its definition.
const void* op_data(const Op& op);
void* op_data(Op& op);

// The value in a field of the op.
inline ValueId value_at(const Op& op, size_t offset) {
  return *reinterpret_cast<const ValueId*>(static_cast<const std::byte*>(op_data(op)) + offset);
}
inline ValueId& value_at(Op& op, size_t offset) {
  return *reinterpret_cast<ValueId*>(static_cast<std::byte*>(op_data(op)) + offset);
}

// Calls f(value, operand) for every operand of the op, in order; absent ones (kNoValue) included.
template <class O, class F>
void visit_operands(O& op, F&& f) {
  for (const Operand& operand : definition(op).operands) f(value_at(op, operand.offset), operand);
}

// Values an op reads and writes (a state is in both), in the order of its operands.
std::vector<ValueId> reads(const Op& op);
std::vector<ValueId> writes(const Op& op);
// Pairs an op works on in place: `to` takes over the storage of `from`, which is dead afterwards.
struct InPlace {
  ValueId from, to;
};
std::vector<InPlace> in_place(const Op& op);

}  // namespace refrain::worker
