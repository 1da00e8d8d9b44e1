#pragma once
// The attention backends by name: for which device each is, and which graphs may hold it. One
// table; read at start. Pure; any thread.

#include <array>
#include <string_view>

#include "kernels/core/device_kind.h"
#include "runtime/base/result.h"
#include "worker/dispatch/attention_support.h"

namespace refrain::worker {

struct AttentionName {
  const char* name;
  DeviceKind device;
  AttentionCGSupport support;
};

// Of each device the one that "auto" means first. host_varlen, host_single_token, cuda_decode and
// FLASHINFER run a plan that the host makes of each step's lengths, as many kernels on accelerators
// do: a graph holds it for the batches of equal rows that its launch shape fits. host_eager may
// stand in no graph at all. cuda_plain leaves out FlashInfer's kernel, which cuda has for prefill.
inline constexpr std::array<AttentionName, 8> kAttentionNames = {{
    {"host", DeviceKind::kHost, AttentionCGSupport::kAlways},
    {"host_varlen", DeviceKind::kHost, AttentionCGSupport::kUniformBatch},
    {"host_single_token", DeviceKind::kHost, AttentionCGSupport::kUniformSingleTokenDecode},
    {"host_eager", DeviceKind::kHost, AttentionCGSupport::kNever},
    {"cuda", DeviceKind::kCuda, AttentionCGSupport::kAlways},
    {"cuda_plain", DeviceKind::kCuda, AttentionCGSupport::kAlways},
    {"cuda_decode", DeviceKind::kCuda, AttentionCGSupport::kUniformBatch},
    {"FLASHINFER", DeviceKind::kCuda, AttentionCGSupport::kUniformSingleTokenDecode},
}};

// `name` as in --attention-backend; "auto" is the first that fits the device. vLLM's and SGLang's
// names are right where they mean the same; another one of theirs is an error that says why, and an
// unknown name one that lists those of this device. `device_name` is for the message.
Result<const AttentionName*> find_attention_name(std::string_view name, DeviceKind device,
                                                 std::string_view device_name);

// Of --attention-backend what is said of a state group: "GROUP=NAME" among entries with commas
// between, or the entry that is a name alone, or "auto".
std::string_view backend_of_group(std::string_view option, std::string_view group);

// Whether all names of the option are right, before there is a device, whose kind is as in
// --device; with "auto" the backends of every kind are.
Status check_attention_backend(std::string_view option, std::string_view device_kind);

}  // namespace refrain::worker
