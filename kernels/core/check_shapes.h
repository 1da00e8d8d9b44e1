#pragma once
// What every device asks of an op's arguments, whatever its limits: operands that are there, of
// element types that kernels take, with rows that do not overlap. A miss is a mistake of the
// program, thrown as FatalError with the op and the operand. Called by each device's check_args.

#include "kernels/core/draft_args.h"
#include "kernels/core/lora_args.h"
#include "kernels/core/op_args.h"
#include "kernels/core/pool_args.h"
#include "kernels/core/sample_args.h"

namespace refrain::kernels {

// For ops that one device alone has: an operand of `cols` columns, a weight.
void check_matrix(const char* op, const char* name, const Matrix& m, int64_t cols);
void check_weight(const char* op, const Weight& w);

void check_shapes(const ProposeNgramArgs& args);
void check_shapes(const AcceptDraftsArgs& args);
void check_shapes(const ProposeDraftsArgs& args);
void check_shapes(const DraftInputsArgs& args);
void check_shapes(const NextTokensArgs& args);
void check_shapes(const ConcatArgs& args);
void check_shapes(const MapLogitsArgs& args);
void check_shapes(const EmbedArgs& args);
void check_shapes(const RmsNormArgs& args);
void check_shapes(const AddRmsNormArgs& args);
void check_shapes(const AddArgs& args);
void check_shapes(const LinearArgs& args);
void check_shapes(const LoraRowsArgs& args);
void check_shapes(const LoraShrinkArgs& args);
void check_shapes(const LoraEmbedArgs& args);
void check_shapes(const LoraExpandArgs& args);
void check_shapes(const LoraLinearArgs& args);
void check_shapes(const SiluMulArgs& args);
void check_shapes(const RopeKvWriteArgs& args);
void check_shapes(const ShareKeysArgs& args);
void check_shapes(const AttentionArgs& args);
void check_planned(const AttentionArgs& args);  // of planned_attention, too
void check_shapes(const LinearRecurrenceArgs& args);
void check_shapes(const SelectRowsArgs& args);
void check_shapes(const BestTokensArgs& args);
void check_shapes(const SampleArgs& args);
void check_shapes(const ScoreTokensArgs& args);
void check_shapes(const PoolArgs& args);
void check_shapes(const PublishLayerArgs& args);
void check_shapes(const RowDistancesArgs& args);

}  // namespace refrain::kernels
