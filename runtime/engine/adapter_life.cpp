// The part of EngineCore that loads LoRA adapters into the ranks of all groups and takes them out.

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"

namespace refrain {

void EngineCore::load_adapter(AdapterSource source, const AdapterDone& done) {
  const auto serves = [](const auto& each) {
    return each->ready() && each->state() == GroupState::kReady;
  };
  if (std::ranges::none_of(groups_, serves))
    return done(fail(ErrorCode::kUnavailable, "the workers are not ready; try again later"));
  if (const auto added = adapters_.add(std::move(source), done); !added)
    return done(forward_error(added.error()));
  for (int32_t index = 0; index < config_.num_groups(); ++index)
    if (serves(groups_[static_cast<size_t>(index)])) ask_for_adapters(index);
}

void EngineCore::unload_adapter(const std::string& name, const AdapterDone& done) {
  if (Status found = adapters_.unload(name, done); !found) return done(std::move(found));
  unloading_ = true;
  finish_unloads();
}

void EngineCore::ask_for_adapters(int32_t index) {
  for (ipc::LoadAdapter& message : adapters_.load_all(index)) group(index).tell(std::move(message));
}

// Its requests wait in the group's scheduler until the group's last rank has it.
void EngineCore::on_adapter(int32_t index, int32_t rank, const ipc::AdapterLoaded& answer) {
  auto answered = adapters_.answer(index, rank, answer);
  if (!answered) return;
  if (!answered->status) return adapter_refused(index, std::move(*answered));
  group(index).adapter_loaded(answered->id);
  log::info("LoRA adapter {} is served{}", answered->source.name,
            groups_.size() == 1 ? "" : fmt::format(" by group {}", index));
  if (answered->done) answered->done({});
  pump(index);
}

void EngineCore::adapter_refused(int32_t index, Adapters::Answered answered) {
  const Error& error = answered.status.error();
  if (answered.gone) {  // ranks that have it drop it
    for (const auto& each : groups_) each->adapter_unloaded(answered.id);
    answered.done(forward_error(error));
  } else if (answered.source.fixed) {
    group(index).give_up("start",
                         fmt::format("--lora-modules {}: {}", answered.source.name, error.message));
  } else {
    const Status unloads = adapters_.unload(answered.source.name, nullptr);
    unloading_ = unloading_ || unloads.has_value();  // else somebody unloads it
    drop_adapter(answered.id, error);
  }
}

// A group before had it, this one cannot load it.
void EngineCore::drop_adapter(AdapterId id, const Error& error) {
  std::vector<RequestId> requests;
  for (const auto& [request, live] : alive_)
    if (live.adapter == id) requests.push_back(request);
  std::ranges::sort(requests);
  for (const RequestId request : requests) {
    remove(request);
    end(request, FinishReason::kError, error);
  }
  publish();
}

void EngineCore::finish_unloads() {
  const auto unused = [this](AdapterId id) {
    return std::ranges::none_of(groups_, [id](const auto& each) { return each->uses_adapter(id); });
  };
  for (const Adapters::Gone& gone : adapters_.take_unheld(unused)) {
    for (const auto& each : groups_) each->adapter_unloaded(gone.id);
    if (gone.done) gone.done({});
  }
  unloading_ = adapters_.any_going();
}

void EngineCore::adapters_lost(int32_t index, const Error& error) {
  for (const Adapters::Ended& ended : adapters_.lose_group(index))
    ended.done(ended.loaded ? Status{} : forward_error(error));
  if (unloading_) finish_unloads();
}

}  // namespace refrain
