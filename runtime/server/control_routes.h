#pragma once
// The routes by which an operator drains a server, or drains, restarts and gives another role to
// single groups while the others serve. Off without --control-key, which they need. Any thread.

#include <optional>

#include "runtime/server/drain_switch.h"
#include "runtime/server/replies.h"

namespace refrain {

class ControlRoutes {
 public:
  // All outlive it.
  ControlRoutes(Engine& engine, DrainSwitch& drain, Replies replies)
      : engine_(engine), drain_(drain), replies_(std::move(replies)) {}

  void add_to(RouteTable& table);

 private:
  void drain(HttpRequest& request, const Exchange& exchange);
  // Of a group, which must be named.
  void control(HttpRequest& request, const Exchange& exchange, GroupOrder::What what);
  // Nothing: no group is named.
  Result<std::optional<GroupOrder>> read_order(const HttpRequest& request,
                                               GroupOrder::What what) const;
  void give(const Exchange& exchange, const GroupOrder& order) const;

  Engine& engine_;
  DrainSwitch& drain_;
  const Replies replies_;
};

}  // namespace refrain
