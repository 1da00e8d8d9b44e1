#pragma once
// What every device asks of an op's arguments, whatever its limits: operands that are there, of
// element types that kernels take, with rows that do not overlap. A miss is a mistake of the
// program, thrown as FatalError with the op and the operand. Called by each device's check_args.

#include "kernels/core/op_args.h"

namespace refrain::kernels {

// For ops that one device alone has: an operand of `cols` columns, a weight.
void check_matrix(const char* op, const char* name, const Matrix& m, int64_t cols);
void check_weight(const char* op, const Weight& w);

void check_shapes(const EmbedArgs& args);
void check_shapes(const RmsNormArgs& args);
void check_shapes(const AddRmsNormArgs& args);
void check_shapes(const AddArgs& args);
void check_shapes(const LinearArgs& args);
void check_shapes(const SiluMulArgs& args);
void check_shapes(const RopeKvWriteArgs& args);
void check_shapes(const AttentionArgs& args);
void check_shapes(const SelectRowsArgs& args);
void check_shapes(const BestTokensArgs& args);
void check_shapes(const SampleArgs& args);
void check_shapes(const RowDistancesArgs& args);

}  // namespace refrain::kernels
