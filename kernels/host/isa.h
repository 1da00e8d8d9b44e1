#pragma once
// The instruction set the host kernels use, chosen once at run time. Results have a fixed reduction
// order per instruction set; kScalar compares across machines. REFRAIN_HOST_ISA or --host-isa
// overrides (scalar, avx2, avx512, avx512_bf16).

#include <optional>
#include <string_view>

namespace refrain::kernels {

enum class HostIsa { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

HostIsa best_host_isa();  // what this processor offers
std::optional<HostIsa> parse_host_isa(std::string_view name);
const char* to_string(HostIsa isa);

struct KernelTable;
// The host kernels for one instruction set; `isa` must not exceed best_host_isa().
const KernelTable& host_kernel_table(HostIsa isa);

}  // namespace refrain::kernels
