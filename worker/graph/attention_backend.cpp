#include "worker/graph/attention_backend.h"

#include <algorithm>
#include <array>

namespace refrain::worker {
namespace {

using kernels::KernelTable;
using PlanKind = kernels::AttentionPlanKind;

// On CUDA a step with a shared prefix leaves its FULL graph, which is worth some 12 us a layer of
// 8B: what is spared must be worth more (docs/gpu-results.md).
constexpr int64_t kHostCascade = int64_t{1} << 18, kCudaCascade = int64_t{256} << 20;

constexpr AttentionName named(std::string_view name) {
  return *std::ranges::find(kAttentionNames, name,
                            [](const AttentionName& one) { return std::string_view(one.name); });
}

constexpr std::array<AttentionBackend, kAttentionNames.size()> kBackends = {{
    {named("host"), 1, &KernelTable::attention, PlanKind::kNone, kHostCascade},
    {named("host_varlen"), 1, &KernelTable::planned_attention, PlanKind::kUnits, kHostCascade},
    {named("host_single_token"), 1, &KernelTable::planned_attention, PlanKind::kUnits,
     kHostCascade},
    {named("host_eager"), 1, &KernelTable::attention, PlanKind::kNone, kHostCascade},
    {named("cuda"), 1, &KernelTable::attention, PlanKind::kNone, kCudaCascade},
    {named("cuda_plain"), 1, &KernelTable::plain_attention, PlanKind::kNone, kCudaCascade},
    {named("cuda_decode"), 1, &KernelTable::planned_attention, PlanKind::kUnits, kCudaCascade},
    {named("FLASHINFER"), 1, &KernelTable::flashinfer_attention, PlanKind::kFlashinfer, 0},
}};
static_assert(std::ranges::equal(kBackends, kAttentionNames, {}, &AttentionBackend::name,
                                 &AttentionName::name));

}  // namespace

bool takes_heads(const AttentionBackend& backend, DType cache, DType out, int64_t head_dim) {
  return backend.kernel != &KernelTable::flashinfer_attention ||
         (cache == DType::kBFloat16 && out == DType::kBFloat16 &&
          (head_dim == 64 || head_dim == 128));
}

std::vector<const AttentionBackend*> attention_backends(DeviceKind device) {
  std::vector<const AttentionBackend*> backends;
  for (const AttentionBackend& backend : kBackends) {
    if (backend.device == device) backends.push_back(&backend);
  }
  return backends;
}

Result<const AttentionBackend*> find_attention_backend(std::string_view name,
                                                       const Device& device) {
  REFRAIN_ASSIGN_OR_RETURN(const AttentionName* found,
                           find_attention_name(name, device.kind(), device.name()));
  return &kBackends[static_cast<size_t>(found - kAttentionNames.data())];
}

}  // namespace refrain::worker
