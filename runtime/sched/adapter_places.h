#pragma once
// Which LoRA adapters are in the workers' places. A place that no running request uses is given to
// the next adapter that needs one, the one that has been out of use longest first. Owned by the
// scheduler.

#include <cstdint>
#include <set>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/ids.h"

namespace refrain {

class AdapterPlaces {
 public:
  explicit AdapterPlaces(int32_t num_places) : places_(static_cast<size_t>(num_places)) {}

  // All ranks have the adapter in memory.
  void loaded(AdapterId id) { known_.insert(id); }
  void unloaded(AdapterId id);
  bool in_use(AdapterId id) const {
    const Place* place = find(id);
    return place != nullptr && place->users > 0;
  }
  // Whether a request of it can run now.
  bool has_room(AdapterId id) const;
  // A request of it begins: its place, which it may have to take, with that said in `placements`.
  int32_t enter(AdapterId id, std::vector<ipc::AdapterPlacement>& placements);
  // No step in flight has a row of the request.
  void leave(int32_t place);

 private:
  struct Place {
    AdapterId adapter = 0;  // 0: none
    int32_t users = 0;
    uint64_t left = 0;  // when the last of them did
  };
  const Place* find(AdapterId id) const;
  const Place* least_recent() const;  // of those without users; null: all are in use

  std::vector<Place> places_;
  std::set<AdapterId> known_;
  uint64_t turns_ = 0;
};

}  // namespace refrain
