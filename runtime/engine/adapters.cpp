#include "runtime/engine/adapters.h"

#include <algorithm>
#include <utility>

#include "runtime/config/model/model_config.h"
#include "runtime/engine/adapter_entries.h"

namespace refrain {

Result<std::vector<AdapterSource>> fixed_adapters(const LoraPaths& paths) {
  std::vector<AdapterSource> sources;
  for (const LoraModule& module : paths.modules) {
    REFRAIN_ASSIGN_OR_RETURN(std::string digest, adapter_digest(module.path));
    sources.push_back({module.name, module.name, std::move(digest), module.path, true});
  }
  return sources;
}

std::optional<AdapterId> Adapters::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return adapter_entries::find(entries_, name);
}

std::vector<AdapterSource> Adapters::list() const {
  const std::lock_guard lock(mutex_);
  return adapter_entries::list(entries_);
}

Result<AdapterId> Adapters::add(AdapterSource source, AdapterDone done) {
  const std::lock_guard lock(mutex_);
  REFRAIN_RETURN_IF_ERROR(
      adapter_entries::check_new(entries_, source.name, static_cast<size_t>(most_)));
  const AdapterId id = next_id_++;
  Entry& entry = entries_[id];
  entry.groups.resize(num_ranks_.size());
  entry.source = std::move(source);
  entry.loaded = std::move(done);
  return id;
}

bool Adapters::asked(const Entry& entry) const {
  return std::ranges::any_of(entry.groups, &OfGroup::asked);
}

bool Adapters::all_have(const Entry& entry) const {
  for (size_t group = 0; group < entry.groups.size(); ++group)
    if (entry.groups[group].asked && entry.groups[group].answers != num_ranks_[group]) return false;
  return true;
}

std::vector<ipc::LoadAdapter> Adapters::load_all(int32_t group) {
  const std::lock_guard lock(mutex_);
  std::vector<ipc::LoadAdapter> messages;
  for (auto& [id, entry] : entries_) {
    OfGroup& of_group = entry.groups[static_cast<size_t>(group)];
    if (of_group.asked) continue;
    of_group = {true, 0, {}};
    messages.push_back({id, entry.source.module, entry.source.digest});
  }
  return messages;
}

std::optional<Adapters::Answered> Adapters::answer(int32_t group, int32_t rank,
                                                   const ipc::AdapterLoaded& answer) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(answer.id);
  if (at == entries_.end()) return std::nullopt;
  Entry& entry = at->second;
  OfGroup& of_group = entry.groups[static_cast<size_t>(group)];
  if (!of_group.asked) return std::nullopt;
  if (!answer.error.empty() && of_group.refusal)
    of_group.refusal = fail_field("lora_path", "rank {}: {}", rank, answer.error);
  if (++of_group.answers != num_ranks_[static_cast<size_t>(group)]) return std::nullopt;
  Answered answered{answer.id, entry.source, of_group.refusal, nullptr, false};
  if (!answered.status) {
    answered.gone = entry.loaded != nullptr;
    answered.done = std::exchange(entry.loaded, nullptr);
    if (answered.gone) entries_.erase(at);
  } else if (all_have(entry)) {
    answered.done = std::exchange(entry.loaded, nullptr);
  }
  return answered;
}

std::vector<Adapters::Ended> Adapters::lose_group(int32_t group) {
  const std::lock_guard lock(mutex_);
  std::vector<Ended> ended;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    const bool was_asked = std::exchange(entry.groups[static_cast<size_t>(group)], {}).asked;
    if (!entry.loaded || !was_asked || (asked(entry) && !all_have(entry))) {
      ++at;
      continue;
    }
    ended.push_back({std::exchange(entry.loaded, nullptr), asked(entry)});
    at = ended.back().loaded ? std::next(at) : entries_.erase(at);  // nobody has had it yet
  }
  return ended;
}

bool Adapters::hold(AdapterId id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end() || at->second.going) return false;
  ++at->second.requests;
  return true;
}

void Adapters::release(AdapterId id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at != entries_.end()) --at->second.requests;
}

Status Adapters::unload(const std::string& name, AdapterDone done) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (entry.source.name != name || !adapter_entries::is_served(entry)) continue;
    entry.going = true;
    entry.unloaded = std::move(done);
    return {};
  }
  return tl::make_unexpected(adapter_entries::not_loaded(name));
}

bool Adapters::any_going() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [](const auto& entry) { return entry.second.going; });
}

std::vector<Adapters::Gone> Adapters::take_unheld(const std::function<bool(AdapterId)>& unused) {
  const std::lock_guard lock(mutex_);
  std::vector<Gone> gone;
  for (auto at = entries_.begin(); at != entries_.end();) {
    if (!at->second.going || at->second.requests > 0 || !unused(at->first)) {
      ++at;
      continue;
    }
    gone.push_back({at->first, std::move(at->second.unloaded)});
    at = entries_.erase(at);
  }
  return gone;
}

}  // namespace refrain
