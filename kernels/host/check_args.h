#pragma once
// Checks of an op's arguments that the host kernels make once, at launch or record time.

#include "kernels/core/op_args.h"
#include "kernels/core/sample_args.h"

namespace refrain::kernels {

void check_args(const EmbedArgs& args);
void check_args(const RmsNormArgs& args);
void check_args(const AddRmsNormArgs& args);
void check_args(const AddArgs& args);
void check_args(const LinearArgs& args);
void check_args(const SiluMulArgs& args);
void check_args(const RopeKvWriteArgs& args);
void check_args(const AttentionArgs& args);
void check_args(const LinearRecurrenceArgs& args);
void check_args(const SelectRowsArgs& args);
void check_args(const BestTokensArgs& args);
void check_args(const SampleArgs& args);
void check_args(const ScoreTokensArgs& args);

}  // namespace refrain::kernels
