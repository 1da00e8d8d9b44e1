#include "worker/runner/program_caches.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/log.h"
#include "worker/runner/attention_planner.h"

namespace refrain::worker {

// Those of the language model; the last of them are its draft model's.
std::vector<ipc::StateGroup> ProgramCaches::groups() const {
  std::vector<ipc::StateGroup> groups = describe_groups(model().program, config_.block_size);
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].cascade_keys = cascade_keys(model(), i, config_.disable_cascade_attn);
  if (draft() == nullptr) return groups;
  const auto own = describe_groups(draft()->program, config_.block_size);
  const size_t first = groups.size() - own.size();
  for (size_t i = 0; i < own.size(); ++i) groups[first + i].bytes = own[i].bytes;
  return groups;
}

std::vector<int64_t> ProgramCaches::of_draft(const std::vector<int64_t>& num_blocks) const {
  return {num_blocks.end() - std::ssize(draft()->program.states), num_blocks.end()};
}

Result<std::vector<ipc::StateGroup>> ProgramCaches::fitting() const {
  // Host ranks share the machine's memory; an accelerator has its own.
  const bool shared = device_.kind() == DeviceKind::kHost;
  std::vector<ipc::StateGroup> groups = this->groups();
  REFRAIN_RETURN_IF_ERROR(choose_num_blocks(config_, device_.memory(), shared, groups));
  return groups;
}

tl::unexpected<Error> ProgramCaches::does_not_fit(const std::vector<int64_t>& blocks,
                                                  const OutOfMemory& error) {
  return fail_field("kv_cache_memory_bytes",
                    "{} KV blocks do not fit: {} ({} bytes are missing); give fewer",
                    fmt::join(blocks, " and "), error.what(), error.missing);
}

void ProgramCaches::make(Stream& stream, const std::vector<int64_t>& num_blocks) {
  const auto cache = [&](const HostedProgram& of, const std::vector<int64_t>& blocks) {
    return std::make_shared<KvCache>(device_, stream, of.program, config_.block_size, blocks);
  };
  model().cache = cache(model(), num_blocks);
  if (draft() != nullptr) draft()->cache = cache(*draft(), of_draft(num_blocks));
}

void ProgramCaches::back(const std::vector<int64_t>& num_blocks) {
  if (draft() != nullptr) draft()->cache->back(of_draft(num_blocks));
  model().cache->back(num_blocks);
  num_blocks_ = num_blocks;
}

Status ProgramCaches::back_what_is_left() {
  if (!num_blocks_.empty()) return {};
  const bool fixed = has_fixed_size(config_);
  std::vector<int64_t> blocks = model().cache->max_blocks();
  // The host device gives pages when they are first used: what it has free says little by now.
  if (!fixed && device_.kind() != DeviceKind::kHost) {
    REFRAIN_ASSIGN_OR_RETURN(const std::vector<ipc::StateGroup> groups, fitting());
    for (size_t i = 0; i < blocks.size(); ++i)
      blocks[i] = std::min(blocks[i], groups[i].num_blocks);
  }
  while (num_blocks_ != blocks) {
    try {
      back(blocks);
    } catch (const OutOfMemory& error) {
      std::vector<int64_t> fewer = fewer_blocks(config_, groups(), blocks, error.missing);
      if (fixed || fewer.empty()) return does_not_fit(blocks, error);
      log::warn("{} KV blocks do not fit ({}); trying {}", fmt::join(blocks, " and "), error.what(),
                fmt::join(fewer, " and "));
      blocks = std::move(fewer);
    }
  }
  return {};
}

}  // namespace refrain::worker
