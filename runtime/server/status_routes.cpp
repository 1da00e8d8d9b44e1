#include "runtime/server/status_routes.h"

#include "runtime/base/build_info.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/server/dashboard.h"
#include "runtime/server/vllm_metrics.h"

namespace refrain {
namespace {

constexpr double kHealthySeconds = 10.0;

}  // namespace

void StatusRoutes::add_to(RouteTable& table) {
  const auto add = [&](const char* path, void (StatusRoutes::*get)(HttpRequest&, const Exchange&),
                       RouteAccess access) {
    table.add(path, {.method = "GET", .handle = std::bind_front(get, this), .access = access});
  };
  add("/", &StatusRoutes::get_index, RouteAccess::kKey);
  add("/dashboard", &StatusRoutes::get_dashboard, RouteAccess::kOpen);
  add("/live", &StatusRoutes::get_live, RouteAccess::kOpen);
  add("/ready", &StatusRoutes::get_ready, RouteAccess::kOpen);
  add("/health", &StatusRoutes::get_health, RouteAccess::kOpen);
  add("/version", &StatusRoutes::get_version, RouteAccess::kKey);
  add("/metrics", &StatusRoutes::get_metrics, RouteAccess::kKey);
  add("/cudagraphs", &StatusRoutes::get_cudagraphs, RouteAccess::kKey);
}

void StatusRoutes::get_live(HttpRequest&, const Exchange& exchange) {
  replies_.json(exchange, {{"status", "live"}});
}

void StatusRoutes::get_ready(HttpRequest&, const Exchange& exchange) {
  const EngineHealth health = engine_.health();
  const bool ready = health.state == GroupState::kReady && !drain_.is_set();
  replies_.json(exchange,
                {{"status", drain_.is_set() ? "draining" : to_string(health.state)},
                 {"detail", health.state_detail}},
                ready ? 200 : 503);
}

// Healthy: serving, and in the last ten seconds an answer of the workers, or a device that got on
// within a long step; idle ones are asked for a canary's answer.
void StatusRoutes::get_health(HttpRequest&, const Exchange& exchange) {
  const EngineHealth health = engine_.health();
  const bool ready = health.state == GroupState::kReady;
  const bool stuck = ready && health.seconds_since_progress > kHealthySeconds;
  const bool healthy = ready && !stuck;
  const char* status =
      stuck ? "no answer and no progress of the workers in the last 10 s" : to_string(health.state);
  Json json = {{"status", healthy ? "healthy" : status},
               {"epoch", health.epoch},
               {"seconds_since_last_answer", health.seconds_since_last_answer},
               {"seconds_since_progress", health.seconds_since_progress},
               {"requests_running", health.requests_running},
               {"requests_waiting", health.requests_waiting}};
  for (size_t group = 0; group < health.groups.size(); ++group)
    json["groups"].push_back({{"group", group}, {"state", to_string(health.groups[group])}});
  replies_.json(exchange, json, healthy ? 200 : 503);
}

void StatusRoutes::get_metrics(HttpRequest&, const Exchange& exchange) {
  engine_.ask_stats([this, exchange](const EngineStats& stats, const AdmissionStats& admission) {
    std::string text = replies_.metrics()->render(stats, admission) + more_metrics_();
    if (engine_.config().vllm_metrics) text += under_vllm_names(text);
    exchange->reply(200, "text/plain; version=0.0.4; charset=utf-8", std::move(text));
  });
}

void StatusRoutes::get_cudagraphs(HttpRequest& request, const Exchange& exchange) {
  const auto format = request.query.find("format");
  const std::string wanted = format == request.query.end() ? "" : format->second;
  const bool page = wanted == "html" || (wanted.empty() && wants_page(request));
  engine_.ask_stats([this, exchange, wanted, page](const EngineStats& stats,
                                                   const AdmissionStats& /*admission*/) {
    if (wanted == "text") {
      exchange->reply(200, "text/plain; charset=utf-8", cudagraph_text(stats));
    } else if (page) {
      exchange->reply(200, "text/html; charset=utf-8", cudagraph_page(stats));
    } else {
      replies_.json(exchange, cudagraph_json(stats));
    }
  });
}

void StatusRoutes::get_version(HttpRequest&, const Exchange& exchange) {
  replies_.json(exchange, {{"version", build_id()}});
}

void StatusRoutes::get_dashboard(HttpRequest&, const Exchange& exchange) {
  exchange->reply(200, "text/html; charset=utf-8", dashboard_page());
}

void StatusRoutes::get_index(HttpRequest& request, const Exchange& exchange) {
  if (wants_page(request)) return get_dashboard(request, exchange);
  Json paths = Json::array();
  for (const std::string& route : table_.list())
    if (!route.ends_with(" /")) paths.push_back(route);
  replies_.json(exchange, {{"refrain", build_id()}, {"routes", std::move(paths)}});
}

}  // namespace refrain
