#pragma once
// What the worker must know of an attention implementation: which graphs may hold it, which length
// padded rows carry, which kernel it is. One table; read at start.

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/kernel_table.h"
#include "runtime/base/result.h"
#include "worker/graph/modes.h"

namespace refrain::worker {

struct AttentionBackend {
  const char* name;
  const char* device;  // the device's name begins with it
  AttentionCGSupport support;
  int32_t padded_seq_len;  // CG-27: sequence length of padded rows
  kernels::Kernel<kernels::AttentionArgs> kernels::KernelTable::*kernel;
};

// Those of a device, the one that "auto" means first.
std::vector<const AttentionBackend*> attention_backends(std::string_view device_name);

// `name` as in --attention-backend; "auto" is the first that fits the device. An unknown name is an
// error that lists those of this device.
Result<const AttentionBackend*> find_attention_backend(std::string_view name,
                                                       std::string_view device_name);

// The same of a name alone, before there is a device, whose kind is as in --device; with "auto" the
// backends of every kind are right.
Status check_attention_backend(std::string_view name, std::string_view device_kind);

}  // namespace refrain::worker
