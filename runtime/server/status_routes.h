#pragma once
// The routes that say how the server is: live, ready, healthy, its metrics, graphs and pages. Any
// thread.

#include <functional>
#include <string>
#include <utility>

#include "runtime/server/drain_switch.h"
#include "runtime/server/replies.h"

namespace refrain {

class StatusRoutes {
 public:
  // All outlive it; `table` is what the index lists.
  StatusRoutes(Engine& engine, const DrainSwitch& drain, const RouteTable& table, Replies replies)
      : engine_(engine), drain_(drain), table_(table), replies_(std::move(replies)) {}

  void add_to(RouteTable& table);
  // Text that /metrics ends with, asked for on any thread; before the first request.
  void add_metrics(std::function<std::string()> more) { more_metrics_ = std::move(more); }

 private:
  void get_live(HttpRequest& request, const Exchange& exchange);
  void get_ready(HttpRequest& request, const Exchange& exchange);
  void get_health(HttpRequest& request, const Exchange& exchange);
  void get_metrics(HttpRequest& request, const Exchange& exchange);
  void get_cudagraphs(HttpRequest& request, const Exchange& exchange);
  void get_version(HttpRequest& request, const Exchange& exchange);
  void get_index(HttpRequest& request, const Exchange& exchange);
  void get_dashboard(HttpRequest& request, const Exchange& exchange);

  Engine& engine_;
  const DrainSwitch& drain_;
  const RouteTable& table_;
  const Replies replies_;
  std::function<std::string()> more_metrics_ = [] { return std::string(); };
};

}  // namespace refrain
