#pragma once
// kv_rows on the host: plain copies, the same on every instruction set.

#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

void launch_kv_rows(StreamRef stream, const KvRowsArgs& args);

}  // namespace refrain::kernels
