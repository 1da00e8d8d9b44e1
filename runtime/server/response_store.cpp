#include "runtime/server/response_store.h"

#include <utility>

namespace refrain {

void ResponseStore::put(const std::string& owner, const std::string& id, Stored stored) {
  Entry entry{id, owner, std::move(stored)};
  const std::lock_guard lock(mutex_);
  if (entry.bytes() > most_bytes_ || by_id_.contains(id)) return;
  bytes_ += entry.bytes();
  entries_.push_front(std::move(entry));
  by_id_[id] = entries_.begin();
  while (bytes_ > most_bytes_) drop(std::prev(entries_.end()));
}

std::optional<ResponseStore::Stored> ResponseStore::find(const std::string& owner,
                                                         const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->stored;
}

bool ResponseStore::erase(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return false;
  drop(found->second);
  return true;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::drop(List::iterator entry) {
  bytes_ -= entry->bytes();
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace refrain
