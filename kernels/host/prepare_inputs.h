#pragma once
// prepare_inputs on the host: integer bookkeeping, the same on every instruction set. Runs on one
// thread: a step has few tokens and the work is a few hundred cache lines.

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

void launch_prepare_inputs(StreamRef stream, const PrepareInputsArgs& args);

}  // namespace refrain::kernels
