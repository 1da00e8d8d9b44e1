#pragma once
// What a draft head asks beyond a draft model, on the host, the same on every instruction set:
// copies of rows, bound by memory.

#include "kernels/core/draft_args.h"
#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

void launch_next_tokens(StreamRef stream, const NextTokensArgs& args);
void launch_concat(StreamRef stream, const ConcatArgs& args);
void launch_map_logits(StreamRef stream, const MapLogitsArgs& args);

}  // namespace refrain::kernels
