#pragma once
// Kernels of --batch-invariant: a row's bits depend on neither the rows beside it, nor on how many
// there are, nor on how its prompt is cut. Those of the other table choose by the number of rows.

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

// By one algorithm of cuBLASLt for any number of rows, which adds an output's products in one
// sequence; linear_simple where it has none for the shape. A FatalError where that algorithm does
// not take so many rows.
void invariant_linear(StreamRef stream, const LinearArgs& args);

// Decodes and prompts by the prefill kernel of attention_mma.cu, which sees a row's keys in tiles
// that are counted from the first one; what that does not take, token by token.
void invariant_attention(StreamRef stream, const AttentionArgs& args);
void invariant_attention_mma(StreamRef stream, const AttentionArgs& args);

}  // namespace refrain::kernels
