#pragma once
// What the CUDA kernels ask of an op's arguments, checked at each launch: kinds of element, sizes.
// A miss is a mistake of the program, thrown as FatalError with the op and the field.

#include "kernels/core/op_args.h"

namespace refrain::kernels::cuda {

void check_args(const PrepareInputsArgs& args);
void check_args(const EmbedArgs& args);
void check_args(const RmsNormArgs& args);
void check_args(const AddRmsNormArgs& args);
void check_args(const AddArgs& args);
void check_args(const LinearArgs& args);
void check_args(const SiluMulArgs& args);
void check_args(const RopeKvWriteArgs& args);
void check_args(const AttentionArgs& args);
void check_args(const SelectRowsArgs& args);
void check_args(const BestTokensArgs& args);
void check_args(const SampleArgs& args);
void check_args(const RowDistancesArgs& args);
void check_args(const FusedLinearArgs& args);
void check_args(const RopeAttentionArgs& args);

}  // namespace refrain::kernels::cuda
