#pragma once
// Which LoRA adapters are in the workers' places, and whose requests may run. A place that no
// running request uses is given to the next adapter that needs one, the one that has been out of
// use longest first; a turn begins. While adapters wait for a place, as many turns come to their
// end, those that began first: of their requests only those run that were there when the turn
// began. So everybody's turn comes, and the longer the queue, the more requests a turn has. Owned
// by the scheduler.

#include <algorithm>
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
  // Whether there is a place for a request of it now.
  bool has_room(AdapterId id) const;

  void arrived(RequestId request) { newest_ = std::max(newest_, request); }
  // A step is planned: all that wait are asked for again, in their order.
  void begin() { waiting_.clear(); }
  // Whether a request that waits may run now. Who has no place keeps those behind from taking one.
  bool may_enter(AdapterId id, RequestId request);
  // A request of it begins: its place, which it may have to take, with that said in `placements`.
  int32_t enter(AdapterId id, std::vector<ipc::AdapterPlacement>& placements);
  // No step in flight has a row of the request.
  void leave(int32_t place);

 private:
  struct Place {
    AdapterId adapter = 0;  // 0: none
    int32_t users = 0;
    uint64_t left = 0;  // when the last of them did
    // The turn: when it began, and the newest request of that time.
    uint64_t began = 0;
    RequestId newest = 0;
  };
  const Place* find(AdapterId id) const;
  const Place* least_recent() const;  // of those without users; null: all are in use
  bool ends(const Place& place) const;

  std::vector<Place> places_;
  std::set<AdapterId> known_;
  std::set<AdapterId> waiting_;  // for a place, of the requests that were asked for
  RequestId newest_ = 0;
  uint64_t time_ = 0;  // counts what happens
};

}  // namespace refrain
