#pragma once
// What the CUDA kernels ask of an op's arguments, checked at each launch: kinds of element, sizes.
// A miss is a mistake of the program, thrown as FatalError with the op and the field.

#include "kernels/core/draft_args.h"
#include "kernels/core/lora_args.h"
#include "kernels/core/op_args.h"
#include "kernels/core/pool_args.h"
#include "kernels/core/sample_args.h"

namespace refrain::kernels::cuda {

void check_args(const PrepareInputsArgs& args);
void check_args(const ProposeNgramArgs& args);
void check_args(const AcceptDraftsArgs& args);
void check_args(const ProposeDraftsArgs& args);
void check_args(const DraftInputsArgs& args);
void check_args(const NextTokensArgs& args);
void check_args(const ConcatArgs& args);
void check_args(const MapLogitsArgs& args);
void check_args(const EmbedArgs& args);
void check_args(const RmsNormArgs& args);
void check_args(const AddRmsNormArgs& args);
void check_args(const AddArgs& args);
void check_args(const LinearArgs& args);
void check_args(const LoraRowsArgs& args);
void check_args(const LoraShrinkArgs& args);
void check_args(const LoraEmbedArgs& args);
void check_args(const LoraExpandArgs& args);
void check_args(const SiluMulArgs& args);
void check_args(const RopeKvWriteArgs& args);
void check_args(const ShareKeysArgs& args);
void check_args(const AttentionArgs& args);
void check_flashinfer(const AttentionArgs& args);  // of flashinfer_attention, too
void check_args(const LinearRecurrenceArgs& args);
void check_args(const SelectRowsArgs& args);
void check_args(const BestTokensArgs& args);
void check_args(const SampleArgs& args);
void check_args(const ScoreTokensArgs& args);
void check_args(const PoolArgs& args);
void check_args(const PublishLayerArgs& args);
void check_args(const RowDistancesArgs& args);
void check_args(const FusedLinearArgs& args);
void check_args(const LoraLinearArgs& args);
void check_args(const RopeAttentionArgs& args);

}  // namespace refrain::kernels::cuda
