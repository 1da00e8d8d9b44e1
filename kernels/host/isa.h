#pragma once
// The instruction set the host kernels use, chosen once at run time. Results have a fixed reduction
// order per instruction set; kScalar compares across machines. REFRAIN_HOST_ISA or --host-isa
// overrides (scalar, avx2, avx512, avx512_bf16).

#include <optional>
#include <string_view>

namespace refrain::kernels {

enum class HostIsa { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

bool has_host_isa(HostIsa isa);  // whether this processor can run it
// The fastest one here. Not always the last: Intel's bfloat16 dot product has half the rate of two
// float32 multiply-adds (Emerald Rapids: 115 against 230 GFLOP/s a core), so kAvx512 is faster
// there.
HostIsa best_host_isa();
std::optional<HostIsa> parse_host_isa(std::string_view name);
const char* to_string(HostIsa isa);

struct KernelTable;
// The host kernels for one instruction set; has_host_isa(isa) must hold.
const KernelTable& host_kernel_table(HostIsa isa);

}  // namespace refrain::kernels
