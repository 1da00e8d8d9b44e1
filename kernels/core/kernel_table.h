#pragma once
// The table a device offers: one function per op, the same names on every device. A function
// enqueues its kernel on the stream (or records it, while the stream captures). A null slot means
// the device cannot run that op; program validation finds it when the worker starts.

#include "kernels/core/op_args.h"

namespace refrain::kernels {

// The device's own stream: a HostLauncher* on the host, a cudaStream_t on CUDA.
struct StreamRef {
  void* native = nullptr;
};

template <class Args>
using Kernel = void (*)(StreamRef stream, const Args& args);

struct KernelTable {
  Kernel<PrepareInputsArgs> prepare_inputs = nullptr;
  Kernel<EmbedArgs> embed = nullptr;
  Kernel<RmsNormArgs> rms_norm = nullptr;
  Kernel<AddRmsNormArgs> add_rms_norm = nullptr;
  Kernel<AddArgs> add = nullptr;
  Kernel<LinearArgs> linear = nullptr;
  Kernel<SiluMulArgs> silu_mul = nullptr;
  Kernel<RopeKvWriteArgs> rope_kv_write = nullptr;
  Kernel<AttentionArgs> attention = nullptr;
  Kernel<SelectRowsArgs> select_rows = nullptr;
  Kernel<SampleArgs> sample = nullptr;
};

}  // namespace refrain::kernels
