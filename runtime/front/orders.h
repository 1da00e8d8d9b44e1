#pragma once
// What was asked of the coordinator and is not answered yet, by ticket. Pure; owned by the front,
// on its executor.

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "runtime/front/messages.h"

namespace refrain::front {

template <class... Told>
class Orders {
 public:
  using Done = std::function<void(const Told&...)>;

  uint64_t add(Done done) {
    open_.emplace(next_, std::move(done));
    return next_++;
  }
  // Called once at most; nothing where it was answered before.
  void answer(uint64_t ticket, const Told&... told) {
    const auto at = open_.find(ticket);
    if (at == open_.end()) return;
    const Done done = std::move(at->second);
    open_.erase(at);
    done(told...);
  }
  void answer_all(const Told&... told) {
    for (const auto& [ticket, done] : std::exchange(open_, {})) done(told...);
  }

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, Done> open_;
};

}  // namespace refrain::front
