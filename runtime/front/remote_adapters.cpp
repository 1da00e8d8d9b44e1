#include "runtime/front/remote_adapters.h"

#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/adapter_entries.h"

namespace refrain::front {

RemoteAdapters::RemoteAdapters(std::vector<AdapterSource> fixed, size_t most, Hooks hooks)
    : most_(most), hooks_(std::move(hooks)) {
  for (AdapterSource& source : fixed) {
    Entry& entry = entries_[next_id_++];
    entry.source = std::move(source);
    entry.has = true;
  }
}

std::optional<AdapterId> RemoteAdapters::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return adapter_entries::find(entries_, name);
}

std::vector<AdapterSource> RemoteAdapters::list() const {
  const std::lock_guard lock(mutex_);
  return adapter_entries::list(entries_);
}

void RemoteAdapters::load(AdapterSource source, AdapterDone done) {
  if (!there_)
    return done(fail(ErrorCode::kUnavailable, "the workers are not ready; try again later"));
  if (const Status fits = adapter_entries::check_new(entries_, source.name, most_); !fits)
    return done(fits);
  AdapterId id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    Entry& entry = entries_[id];
    entry.source = std::move(source);
    entry.loaded = std::move(done);
    entry.asked = true;
  }
  hooks_.load(id, entries_.at(id).source);
}

void RemoteAdapters::load_answered(AdapterId id, const Status& status) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  entry.asked = false;
  entry.has = status.has_value();
  AdapterDone done;
  {
    const std::lock_guard lock(mutex_);
    done = std::exchange(entry.loaded, nullptr);
  }
  if (status) {
    if (done) return done({});
    hooks_.loaded(id);
    return unload_if_unheld(id, entry);
  }
  if (done) {  // nobody has had it
    erase(id);
    return done(status);
  }
  if (status.error().code == ErrorCode::kUnavailable) return;  // its workers went: ready() again
  log::error("LoRA adapter {} cannot be loaded again: {}", entry.source.name,
             status.error().message);
  hooks_.drop(id, status.error());
  erase(id);
}

void RemoteAdapters::unload(const std::string& name, AdapterDone done) {
  for (auto& [id, entry] : entries_) {
    if (entry.source.name != name || !adapter_entries::is_served(entry)) continue;
    {
      const std::lock_guard lock(mutex_);
      entry.going = true;
    }
    entry.unloaded = std::move(done);
    return unload_if_unheld(id, entry);
  }
  done(tl::make_unexpected(adapter_entries::not_loaded(name)));
}

void RemoteAdapters::unload_if_unheld(AdapterId id, Entry& entry) {
  if (!entry.going || entry.requests > 0 || entry.told_to_unload) return;
  if (there_ && entry.has) {
    entry.told_to_unload = true;
    return hooks_.unload(id, entry.source.name);
  }
  if (entry.source.fixed) fixed_gone_.push_back(entry.source.name);
  const AdapterDone done = std::move(entry.unloaded);
  erase(id);
  done({});
}

void RemoteAdapters::unload_answered(AdapterId id, const Status& status) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  if (at->second.source.fixed) fixed_gone_.push_back(at->second.source.name);
  const AdapterDone done = std::move(at->second.unloaded);
  erase(id);
  done(status);
}

void RemoteAdapters::erase(AdapterId id) {
  const std::lock_guard lock(mutex_);
  entries_.erase(id);
}

bool RemoteAdapters::hold(AdapterId id) {
  const auto at = entries_.find(id);
  if (at == entries_.end() || at->second.going) return false;
  ++at->second.requests;
  return true;
}

void RemoteAdapters::release(AdapterId id) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  --at->second.requests;
  unload_if_unheld(id, at->second);
}

bool RemoteAdapters::usable(AdapterId id) const {
  const auto at = entries_.find(id);
  return at != entries_.end() && at->second.has;
}

std::string RemoteAdapters::name_of(AdapterId id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? std::string() : at->second.source.name;
}

void RemoteAdapters::ready() {
  for (const std::string& name :
       std::exchange(there_, true) ? std::vector<std::string>() : fixed_gone_)
    hooks_.unload(0, name);
  for (auto& [id, entry] : entries_) {
    if (entry.asked) continue;
    if (!entry.has) {
      entry.asked = true;
      hooks_.load(id, entry.source);
    }
  }
}

void RemoteAdapters::lost() {
  there_ = false;
  std::vector<std::pair<AdapterDone, Status>> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = entries_.begin(); at != entries_.end();) {
      Entry& entry = at->second;
      entry.has = entry.source.fixed;
      entry.asked = entry.told_to_unload = false;
      if (entry.loaded) {
        ended.emplace_back(std::move(entry.loaded),
                           fail(ErrorCode::kUnavailable,
                                "the coordinator was lost while it loaded it; try again later"));
      } else if (entry.going && entry.requests == 0) {
        if (entry.source.fixed) fixed_gone_.push_back(entry.source.name);
        ended.emplace_back(std::move(entry.unloaded), Status{});
      } else {
        ++at;
        continue;
      }
      at = entries_.erase(at);
    }
  }
  for (const auto& [done, status] : ended) done(status);
}

}  // namespace refrain::front
