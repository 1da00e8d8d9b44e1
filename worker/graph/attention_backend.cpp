#include "worker/graph/attention_backend.h"

#include <array>

namespace refrain::worker {
namespace {

using kernels::KernelTable;

// host_varlen plans its work for batches of equal query lengths only as far as graphs go, as many
// variable-length kernels on accelerators do; host_eager may stand in no graph at all. cuda_plain
// leaves out FlashInfer's kernel, which cuda has for prefill.
constexpr std::array<AttentionBackend, 7> kBackends = {{
    {"host", "host", AttentionCGSupport::kAlways, 1, &KernelTable::attention},
    {"host_varlen", "host", AttentionCGSupport::kUniformBatch, 1, &KernelTable::attention},
    {"host_single_token", "host", AttentionCGSupport::kUniformSingleTokenDecode, 1,
     &KernelTable::attention},
    {"host_eager", "host", AttentionCGSupport::kNever, 1, &KernelTable::attention},
    {"cuda", "NVIDIA", AttentionCGSupport::kAlways, 1, &KernelTable::attention},
    {"cuda_plain", "NVIDIA", AttentionCGSupport::kAlways, 1, &KernelTable::plain_attention},
    {"cuda_decode", "NVIDIA", AttentionCGSupport::kUniformBatch, 1, &KernelTable::attention},
}};

}  // namespace

std::vector<const AttentionBackend*> attention_backends(std::string_view device_name) {
  std::vector<const AttentionBackend*> backends;
  for (const AttentionBackend& backend : kBackends) {
    if (device_name.starts_with(backend.device)) backends.push_back(&backend);
  }
  return backends;
}

Result<const AttentionBackend*> find_attention_backend(std::string_view name,
                                                       std::string_view device_name) {
  std::string names = "auto";
  for (const AttentionBackend* backend : attention_backends(device_name)) {
    if (name == "auto" || name == backend->name) return backend;
    names += std::string(", ") + backend->name;
  }
  return fail_field("attention_backend", "attention_backend \"{}\" is unknown on {}; it must be {}",
                    name, device_name, names);
}

Status check_attention_backend(std::string_view name, std::string_view device_kind) {
  const std::string_view device = device_kind == "cuda" ? "NVIDIA" : device_kind;
  std::string names = "auto";
  bool known = name == "auto";
  for (const AttentionBackend& backend : kBackends) {
    if (device != "auto" && device != backend.device) continue;
    known = known || name == backend.name;
    names += std::string(", ") + backend.name;
  }
  if (known) return {};
  return fail_field("--attention-backend",
                    "--attention-backend \"{}\" is unknown; with --device {} it must be {}", name,
                    device_kind, names);
}

}  // namespace refrain::worker
