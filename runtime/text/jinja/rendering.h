#pragma once
// What all parts of one rendering share: its budget, its time, and the values that may refer to
// themselves. One object for one rendering, used by one thread; it outlives the rendering's values.

#include <chrono>
#include <memory>
#include <vector>

#include "runtime/text/jinja/budget.h"
#include "runtime/text/jinja/scope.h"

namespace refrain::jinja {

// What may refer to itself in a circle; taken apart at the end, so that its memory is freed.
class Circles {
 public:
  Circles() = default;
  ~Circles();
  Circles(const Circles&) = delete;
  Circles& operator=(const Circles&) = delete;

  void add(const ScopePtr& scope) { scopes_.emplace_back(scope); }  // a macro's
  void add(const std::shared_ptr<Namespace>& space) { namespaces_.emplace_back(space); }

 private:
  std::vector<std::weak_ptr<Scope>> scopes_;
  std::vector<std::weak_ptr<Namespace>> namespaces_;
};

struct Rendering {
  Budget budget;
  std::chrono::system_clock::time_point now;  // what strftime_now() tells
  Circles circles = {};
};

}  // namespace refrain::jinja
