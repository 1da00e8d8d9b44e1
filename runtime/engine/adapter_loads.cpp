#include "runtime/engine/adapter_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace refrain {
namespace {

std::vector<int32_t> ranks_of(const std::vector<Group>& groups) {
  std::vector<int32_t> ranks;
  ranks.reserve(groups.size());
  for (const Group& group : groups) ranks.push_back(group.num_ranks());
  return ranks;
}

}  // namespace

AdapterLoads::AdapterLoads(const EngineConfig& config, GroupServices& groups, Hooks hooks)
    : groups_(groups),
      hooks_(std::move(hooks)),
      adapters_(ranks_of(config.groups()), config.max_cpu_loras) {}

void AdapterLoads::load(AdapterSource source, const AdapterDone& done) {
  const auto serves = [](const auto& each) {
    return each->ready() && each->state() == GroupState::kReady;
  };
  if (std::ranges::none_of(groups_, serves))
    return done(fail(ErrorCode::kUnavailable, "the workers are not ready; try again later"));
  if (const auto added = adapters_.add(std::move(source), done); !added)
    return done(forward_error(added.error()));
  int32_t index = 0;
  for (const auto& each : groups_) {
    if (serves(each)) ask(index);
    ++index;
  }
}

void AdapterLoads::unload(const std::string& name, const AdapterDone& done) {
  if (Status found = adapters_.unload(name, done); !found) return done(std::move(found));
  unloading_ = true;
  finish_unloads();
}

void AdapterLoads::ask(int32_t index) {
  for (ipc::LoadAdapter& message : adapters_.load_all(index))
    groups_[index].tell(std::move(message));
}

// Its requests wait in the group's scheduler until the group's last rank has it.
void AdapterLoads::answered(int32_t index, int32_t rank, const ipc::AdapterLoaded& answer) {
  auto answered = adapters_.answer(index, rank, answer);
  if (!answered) return;
  if (!answered->status) return refused(index, std::move(*answered));
  groups_[index].adapter_loaded(answered->id);
  log::info("LoRA adapter {} is served{}", answered->source.name,
            groups_.size() == 1 ? "" : fmt::format(" by group {}", index));
  if (answered->done) answered->done({});
  hooks_.served(index);
}

void AdapterLoads::refused(int32_t index, Adapters::Answered answered) {
  const Error& error = answered.status.error();
  if (answered.gone) {  // ranks that have it drop it
    for (const auto& each : groups_) each->adapter_unloaded(answered.id);
    answered.done(forward_error(error));
  } else if (answered.source.fixed) {
    groups_[index].give_up(
        "start", fmt::format("--lora-modules {}: {}", answered.source.name, error.message));
  } else {  // a group before had it, this one cannot load it
    const Status unloads = adapters_.unload(answered.source.name, nullptr);
    unloading_ = unloading_ || unloads.has_value();  // else somebody unloads it
    hooks_.drop(answered.id, error);
  }
}

void AdapterLoads::finish_unloads() {
  const auto unused = [this](AdapterId id) {
    return std::ranges::none_of(groups_, [id](const auto& each) { return each->uses_adapter(id); });
  };
  for (const Adapters::Gone& gone : adapters_.take_unheld(unused)) {
    for (const auto& each : groups_) each->adapter_unloaded(gone.id);
    if (gone.done) gone.done({});
  }
  unloading_ = adapters_.any_going();
}

void AdapterLoads::lost(int32_t index, const Error& error) {
  for (const Adapters::Ended& ended : adapters_.lose_group(index))
    ended.done(ended.loaded ? Status{} : forward_error(error));
  settle();
}

}  // namespace refrain
