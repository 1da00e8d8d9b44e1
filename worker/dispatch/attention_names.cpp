#include "worker/dispatch/attention_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace refrain::worker {
namespace {

// Names of vLLM (upper case) and SGLang. `means`: ours of the same meaning; else `why` it is
// refused.
struct PeerName {
  std::string_view name;
  const char* means;
  const char* why;
};
constexpr const char* kLibrary =
    "is a library's kernels that this server has not; \"auto\" takes its own";
constexpr const char* kLatent = "is for models with latent attention (MLA), which are not served";
constexpr const char* kOtherDevice = "is for devices that are not served";
constexpr std::array<PeerName, 31> kPeerNames = {{
    {"CPU_ATTN", "host", nullptr},
    {"FLASH_ATTN", nullptr, kLibrary},
    {"FLASH_ATTN_DIFFKV", nullptr, kLibrary},
    {"TRITON_ATTN", nullptr, kLibrary},
    {"TORCH_SDPA", nullptr, kLibrary},
    {"FLEX_ATTENTION", nullptr, kLibrary},
    {"TREE_ATTN", nullptr, "is for trees of drafts, which are not proposed"},
    {"NO_ATTENTION", nullptr, "is for models without attention, which are not served"},
    {"CUSTOM", nullptr, "is a backend of a plug-in, of which there are none"},
    {"FLASHMLA", nullptr, kLatent},
    {"FLASHMLA_SPARSE", nullptr, kLatent},
    {"FLASHINFER_MLA", nullptr, kLatent},
    {"FLASHINFER_MLA_SPARSE", nullptr, kLatent},
    {"FLASH_ATTN_MLA", nullptr, kLatent},
    {"TRITON_MLA", nullptr, kLatent},
    {"CUTLASS_MLA", nullptr, kLatent},
    {"ROCM_ATTN", nullptr, kOtherDevice},
    {"ROCM_AITER_FA", nullptr, kOtherDevice},
    {"ROCM_AITER_UNIFIED_ATTN", nullptr, kOtherDevice},
    {"ROCM_AITER_MLA", nullptr, kOtherDevice},
    {"flashinfer", "FLASHINFER", nullptr},
    {"fa3", nullptr, kLibrary},
    {"fa4", nullptr, kLibrary},
    {"triton", nullptr, kLibrary},
    {"torch_native", nullptr, kLibrary},
    {"flex_attention", nullptr, kLibrary},
    {"flashmla", nullptr, kLatent},
    {"cutlass_mla", nullptr, kLatent},
    {"trtllm_mla", nullptr, kLatent},
    {"intel_amx", nullptr, kLibrary},
    {"aiter", nullptr, kOtherDevice},
}};

const PeerName* peer_name(std::string_view name) {
  const auto* found = std::ranges::find(kPeerNames, name, &PeerName::name);
  return found == kPeerNames.end() ? nullptr : found;
}

std::string_view own_name(std::string_view name) {
  const PeerName* peer = peer_name(name);
  return peer == nullptr || peer->means == nullptr ? name : peer->means;
}

tl::unexpected<Error> unknown(const char* field, std::string_view name, std::string_view where,
                              const std::string& names) {
  const PeerName* peer = peer_name(name);
  if (peer != nullptr && peer->why != nullptr)
    return fail_field(field, "{}: {} {}; {} it must be {}", field, name, peer->why, where, names);
  return fail_field(field, "{} \"{}\" is unknown; {} it must be {}", field, name, where, names);
}

}  // namespace

Result<const AttentionName*> find_attention_name(std::string_view name, DeviceKind device,
                                                 std::string_view device_name) {
  std::string names = "auto";
  for (const AttentionName& backend : kAttentionNames) {
    if (backend.device != device) continue;
    if (name == "auto" || own_name(name) == backend.name) return &backend;
    names += std::string(", ") + backend.name;
  }
  return unknown("attention_backend", name, fmt::format("on {}", device_name), names);
}

namespace {

// f(group, name) of each entry; the group of a name alone is empty.
template <class F>
void each_entry(std::string_view option, F f) {
  while (true) {
    const std::string_view entry = option.substr(0, option.find(','));
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      f(std::string_view(), entry);
    } else {
      f(entry.substr(0, equals), entry.substr(equals + 1));
    }
    if (entry.size() == option.size()) return;
    option.remove_prefix(entry.size() + 1);
  }
}

// As --device says it.
std::string_view option_of(DeviceKind device) {
  return device == DeviceKind::kHost ? "host" : "cuda";
}

Status check_name(std::string_view name, std::string_view device_kind) {
  std::string names = "auto";
  bool known = name == "auto";
  for (const AttentionName& backend : kAttentionNames) {
    if (device_kind != "auto" && device_kind != option_of(backend.device)) continue;
    known = known || own_name(name) == backend.name;
    names += std::string(", ") + backend.name;
  }
  if (known) return {};
  return unknown("--attention-backend", name, fmt::format("with --device {}", device_kind), names);
}

}  // namespace

std::string_view backend_of_group(std::string_view option, std::string_view group) {
  std::string_view all = "auto", own;
  each_entry(option, [&](std::string_view of, std::string_view name) {
    if (of.empty()) all = name;
    if (of == group) own = name;
  });
  return own.empty() ? all : own;
}

Status check_attention_backend(std::string_view option, std::string_view device_kind) {
  Status status;
  each_entry(option, [&](std::string_view /*group*/, std::string_view name) {
    if (status) status = check_name(name, device_kind);
  });
  return status;
}

}  // namespace refrain::worker
