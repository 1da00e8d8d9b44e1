#pragma once
// What the worker must know of an attention implementation: which graphs may hold it, which length
// padded rows carry, which kernel it is. One table; read at start.

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/attention_units.h"
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
  kernels::AttentionPlanKind plan;  // that the host makes of each step; kNone: it needs none
  // Bytes of keys and values a layer that cascade attention must save to pay, as measured; 0: the
  // backend's steps have none.
  int64_t cascade_bytes;
};

// Whether its kernel is for keys, values and results of these.
bool takes_heads(const AttentionBackend& backend, DType cache, DType out, int64_t head_dim);

// Those of a device, the one that "auto" means first.
std::vector<const AttentionBackend*> attention_backends(std::string_view device_name);

// `name` as in --attention-backend; "auto" is the first that fits the device. vLLM's and SGLang's
// names are right where they mean the same; another one of theirs is an error that says why, and an
// unknown name one that lists those of this device.
Result<const AttentionBackend*> find_attention_backend(std::string_view name,
                                                       std::string_view device_name);

// Of --attention-backend what is said of a state group: "GROUP=NAME" among entries with commas
// between, or the entry that is a name alone, or "auto".
std::string_view backend_of_group(std::string_view option, std::string_view group);

// Whether all names of the option are right, before there is a device, whose kind is as in
// --device; with "auto" the backends of every kind are.
Status check_attention_backend(std::string_view option, std::string_view device_kind);

}  // namespace refrain::worker
