#include "kernels/host/isa.h"

#include "kernels/host/tables.h"
#include "runtime/base/check.h"

namespace refrain::kernels {

bool has_host_isa(HostIsa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  switch (isa) {
    case HostIsa::kScalar:
      return true;
    case HostIsa::kAvx2:
      return avx2;
    case HostIsa::kAvx512:
      return avx512;
    case HostIsa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  }
  return false;
}

HostIsa best_host_isa() {
  if (has_host_isa(HostIsa::kAvx512Bf16) && __builtin_cpu_is("intel") == 0) {
    return HostIsa::kAvx512Bf16;
  }
  if (has_host_isa(HostIsa::kAvx512)) return HostIsa::kAvx512;
  return has_host_isa(HostIsa::kAvx2) ? HostIsa::kAvx2 : HostIsa::kScalar;
}

std::optional<HostIsa> parse_host_isa(std::string_view name) {
  for (const HostIsa isa :
       {HostIsa::kScalar, HostIsa::kAvx2, HostIsa::kAvx512, HostIsa::kAvx512Bf16}) {
    if (name == to_string(isa)) return isa;
  }
  return std::nullopt;
}

const char* to_string(HostIsa isa) {
  switch (isa) {
    case HostIsa::kScalar:
      return "scalar";
    case HostIsa::kAvx2:
      return "avx2";
    case HostIsa::kAvx512:
      return "avx512";
    case HostIsa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "?";
}

const KernelTable& host_kernel_table(HostIsa isa) {
  REFRAIN_CHECK(has_host_isa(isa), "this processor has no {}; its best is {}", to_string(isa),
                to_string(best_host_isa()));
  // A table is made only when asked for: the code that makes it may need its instruction set.
  switch (isa) {
    case HostIsa::kScalar: {
      static const KernelTable table = scalar_table();
      return table;
    }
    case HostIsa::kAvx2: {
      static const KernelTable table = avx2_table();
      return table;
    }
    case HostIsa::kAvx512: {
      static const KernelTable table = avx512_table();
      return table;
    }
    case HostIsa::kAvx512Bf16:
      break;
  }
  static const KernelTable table = avx512_bf16_table();
  return table;
}

}  // namespace refrain::kernels
