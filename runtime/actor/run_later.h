#pragma once
// How a part of an actor sets timers: they run on the actor's executor, and only while the actor
// lives.

#include <functional>
#include <memory>
#include <utility>

#include "runtime/actor/executor.h"

namespace refrain {

using RunLater = std::function<TimerId(Duration, std::function<void()>)>;

template <class Actor>
RunLater run_later(std::shared_ptr<Executor> executor, std::weak_ptr<Actor> actor) {
  return [executor = std::move(executor), actor = std::move(actor)](Duration delay,
                                                                    std::function<void()> task) {
    return executor->post_after(delay, [actor, task = std::move(task)] {
      if (const auto alive = actor.lock()) task();
    });
  };
}

}  // namespace refrain
