#pragma once
// What the worker must know of an attention implementation: which graphs may hold it, which length
// padded rows carry, which kernel it is. One table; read at start.

#include <string_view>
#include <vector>

#include "kernels/core/attention_units.h"
#include "kernels/core/kernel_table.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/dispatch/attention_names.h"

namespace refrain::worker {

struct AttentionBackend : AttentionName {
  int32_t padded_seq_len;  // CG-27: sequence length of padded rows
  kernels::Kernel<kernels::AttentionArgs> kernels::KernelTable::*kernel;
  kernels::AttentionPlanKind plan;  // that the host makes of each step; kNone: it needs none
  // Bytes of keys and values a layer that cascade attention must save to pay, as measured; 0: the
  // backend's steps have none.
  int64_t cascade_bytes;
};

// Whether its kernel is for keys, values and results of these.
bool takes_heads(const AttentionBackend& backend, DType cache, DType out, int64_t head_dim);

// Those of a device, the one that "auto" means first.
std::vector<const AttentionBackend*> attention_backends(DeviceKind device);

// As find_attention_name().
Result<const AttentionBackend*> find_attention_backend(std::string_view name, const Device& device);

}  // namespace refrain::worker
