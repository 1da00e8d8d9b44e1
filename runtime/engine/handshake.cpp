#include "runtime/engine/handshake.h"

#include <fmt/format.h>

#include <algorithm>

namespace refrain {
namespace {

std::string describe(bool uniform, bool lora, ipc::CaptureHiddenMode hidden) {
  return fmt::format("{}{}{}", uniform ? ", uniform" : "", lora ? ", LoRA" : "",
                     hidden == ipc::CaptureHiddenMode::kNull
                         ? ""
                         : fmt::format(", hidden {}", ipc::to_string(hidden)));
}

std::string describe(const ipc::ManifestEntry& entry) {
  return fmt::format("{} {} tokens, {} requests{} (digest {:016x})", entry.mode, entry.num_tokens,
                     entry.num_reqs, describe(entry.uniform, entry.has_lora, entry.hidden),
                     entry.digest);
}

bool same_key(const ipc::ManifestEntry& a, const ipc::ManifestEntry& b) {
  return a.mode == b.mode && a.num_tokens == b.num_tokens && a.num_reqs == b.num_reqs &&
         a.uniform == b.uniform && a.has_lora == b.has_lora && a.hidden == b.hidden &&
         a.digest == b.digest;
}

std::optional<std::string> manifest_mismatch(const ipc::Ready& first, const ipc::Ready& other,
                                             size_t rank) {
  const size_t count = std::max(first.manifest.size(), other.manifest.size());
  for (size_t i = 0; i < count; ++i) {
    const bool both = i < first.manifest.size() && i < other.manifest.size();
    if (both && same_key(first.manifest[i], other.manifest[i])) continue;
    const auto name = [i](const ipc::Ready& ready) {
      return i < ready.manifest.size() ? describe(ready.manifest[i]) : std::string("nothing");
    };
    return fmt::format(
        "rank 0 and rank {} captured different graphs; the first that differs: "
        "rank 0 has {}, rank {} has {}. All ranks need the same build, model and "
        "device",
        rank, name(first), rank, name(other));
  }
  return std::nullopt;
}

std::string describe(const ipc::StepResult& result) {
  return fmt::format("{} {} tokens ({} live), {} requests{}", ipc::to_string(result.mode),
                     result.key_tokens, result.num_tokens, result.key_reqs,
                     describe(result.key_uniform, result.key_lora, result.key_hidden));
}

}  // namespace

std::optional<std::string> refusal(const ipc::Hello& hello, const GroupIdentity& identity) {
  if (hello.protocol_version != ipc::kProtocolVersion)
    return fmt::format(
        "the worker speaks protocol {}, the coordinator {}; start both from the same "
        "build",
        hello.protocol_version, ipc::kProtocolVersion);
  if (hello.build_id != identity.build_id)
    return fmt::format(
        "the worker is of build {}, the coordinator of build {}; start both from the "
        "same build",
        hello.build_id, identity.build_id);
  if (hello.model_digest != identity.model_digest)
    return fmt::format(
        "the worker's model has digest {}, the coordinator's {}; give both the same "
        "model directory",
        hello.model_digest, identity.model_digest);
  if (hello.tensor_parallel_size != identity.tensor_parallel_size)
    return fmt::format(
        "the worker was started with --tensor-parallel-size {}, the coordinator with "
        "{}",
        hello.tensor_parallel_size, identity.tensor_parallel_size);
  if (hello.group != identity.group)
    return fmt::format("the worker was started with --group {}; groups are 0 to {}", hello.group,
                       identity.num_groups - 1);
  const std::string role = identity.role.empty() ? "both" : identity.role;
  if (!hello.role.empty() && hello.role != role)
    return fmt::format("the worker was started with --role {}, but group {} has role {}",
                       hello.role, identity.group, role);
  if (hello.rank < 0 || hello.rank >= identity.tensor_parallel_size)
    return fmt::format("the worker claims rank {}; ranks are 0 to {}", hello.rank,
                       identity.tensor_parallel_size - 1);
  return std::nullopt;
}

std::optional<std::string> ready_mismatch(const std::vector<ipc::Ready>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const ipc::Ready& first = ranks.front();
    const ipc::Ready& other = ranks[rank];
    if (first.cudagraph_mode != other.cudagraph_mode)
      return fmt::format("rank 0 runs with cudagraph mode {} and rank {} with {}",
                         first.cudagraph_mode, rank, other.cudagraph_mode);
    if (first.uniform_query_len != other.uniform_query_len)
      return fmt::format("rank 0 has uniform query length {} and rank {} has {}",
                         first.uniform_query_len, rank, other.uniform_query_len);
    if (auto mismatch = manifest_mismatch(first, other, rank)) return mismatch;
  }
  return std::nullopt;
}

std::optional<std::string> recaptured_otherwise(const std::vector<ipc::Ready>& before,
                                                const std::vector<ipc::Ready>& now) {
  for (size_t rank = 0; rank < std::min(before.size(), now.size()); ++rank) {
    for (const ipc::ManifestEntry& entry : now[rank].manifest) {
      const auto earlier = std::ranges::find_if(
          before[rank].manifest, [&](const auto& other) { return same_key(entry, other); });
      if (earlier == before[rank].manifest.end() || earlier->launch_digest == entry.launch_digest)
        continue;
      return fmt::format(
          "rank {} captured {} with other launches ({:016x}) than the group before it ({:016x}); "
          "its device, driver or memory may have changed",
          rank, describe(entry), entry.launch_digest, earlier->launch_digest);
    }
  }
  return std::nullopt;
}

std::optional<std::string> key_mismatch(const std::vector<ipc::StepResult>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const ipc::StepResult& first = ranks.front();
    const ipc::StepResult& other = ranks[rank];
    const bool same = first.mode == other.mode && first.key_tokens == other.key_tokens &&
                      first.key_reqs == other.key_reqs && first.key_uniform == other.key_uniform &&
                      first.key_lora == other.key_lora && first.key_hidden == other.key_hidden &&
                      first.num_tokens == other.num_tokens;
    if (!same)
      return fmt::format("rank 0 ran step {} as {} and rank {} as {}; ranks must run the same key",
                         first.step, describe(first), rank, describe(other));
  }
  return std::nullopt;
}

}  // namespace refrain
