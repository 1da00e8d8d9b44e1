#include "runtime/sched/adapter_places.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain {

const AdapterPlaces::Place* AdapterPlaces::find(AdapterId id) const {
  const auto at = std::ranges::find(places_, id, &Place::adapter);
  return at == places_.end() ? nullptr : &*at;
}

const AdapterPlaces::Place* AdapterPlaces::least_recent() const {
  const Place* best = nullptr;
  for (const Place& place : places_) {
    if (place.users == 0 && (best == nullptr || place.left < best->left)) best = &place;
  }
  return best;
}

bool AdapterPlaces::has_room(AdapterId id) const {
  return known_.contains(id) && (find(id) != nullptr || least_recent() != nullptr);
}

// Its turn is one of those that end for who waits.
bool AdapterPlaces::ends(const Place& place) const {
  const auto before =
      std::ranges::count_if(places_, [&](const Place& other) { return other.began < place.began; });
  return static_cast<size_t>(before) < waiting_.size();
}

bool AdapterPlaces::may_enter(AdapterId id, RequestId request) {
  if (id == 0) return true;
  if (!known_.contains(id)) return false;
  if (const Place* place = find(id)) return !ends(*place) || request <= place->newest;
  if (waiting_.empty() && least_recent() != nullptr) return true;
  waiting_.insert(id);
  return false;
}

int32_t AdapterPlaces::enter(AdapterId id, std::vector<ipc::AdapterPlacement>& placements) {
  REFRAIN_CHECK(has_room(id), "LoRA adapter {} has no place", id);
  const Place* has = find(id);
  const auto index = (has != nullptr ? has : least_recent()) - places_.data();
  Place& place = places_[static_cast<size_t>(index)];
  if (has == nullptr) {
    place.adapter = id;
    place.began = ++time_;
    place.newest = newest_;
    placements.push_back({static_cast<int32_t>(index), id});
  }
  ++place.users;
  return static_cast<int32_t>(index);
}

void AdapterPlaces::leave(int32_t place) {
  Place& left = places_[static_cast<size_t>(place)];
  REFRAIN_CHECK(left.users > 0, "place {} of LoRA adapters has no user", place);
  --left.users;
  left.left = ++time_;
}

void AdapterPlaces::unloaded(AdapterId id) {
  known_.erase(id);
  for (Place& place : places_) {
    if (place.adapter != id) continue;
    REFRAIN_CHECK(place.users == 0, "LoRA adapter {} goes while requests use it", id);
    place = {};
  }
}

}  // namespace refrain
