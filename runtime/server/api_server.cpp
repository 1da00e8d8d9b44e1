#include "runtime/server/api_server.h"

#include "runtime/server/cudagraph_page.h"
#include "runtime/server/request_head.h"

namespace refrain {
namespace {

HttpHeaders bearer_wanted() { return {{"WWW-Authenticate", "Bearer"}}; }

std::shared_ptr<Metrics> make_metrics(const EngineConfig& config) {
  return std::make_shared<Metrics>(config.served_model_names.front(), cache_labels(config));
}

}  // namespace

ApiServer::ApiServer(Engine& engine, TextSide text, ApiKeys keys, int text_threads)
    : engine_(engine),
      text_(std::move(text)),
      keys_(std::move(keys)),
      cors_(engine.config().cors),
      replies_(engine, make_metrics(engine.config())),
      work_(std::make_shared<TextWork>(engine.config(), keys_, replies_, text_threads)),
      tokens_(text_, engine.config().worker.max_model_len, work_->stopped()),
      reader_(engine, text_, tokens_, *work_, ignored_, replies_),
      status_(engine, drain_, routes_, replies_),
      control_(engine, drain_, replies_),
      models_(engine, replies_),
      adapters_(engine, *work_, replies_),
      completions_(engine.config(), *work_, reader_, replies_),
      responses_(engine.config(), keys_, *work_, reader_, replies_),
      pooling_(engine, *work_, reader_, replies_),
      token_routes_(engine, tokens_, *work_, ignored_) {
  status_.add_to(routes_);
  control_.add_to(routes_);
  models_.add_to(routes_);
  adapters_.add_to(routes_);
  completions_.add_to(routes_);
  responses_.add_to(routes_);
  pooling_.add_to(routes_);
  token_routes_.add_to(routes_);
}

std::optional<ApiServer::Refusal> ApiServer::key_refusal(const HttpRequest& request,
                                                         const Route* route) const {
  if (route != nullptr && route->access == RouteAccess::kOperator) {
    if (engine_.config().control_key.empty()) {
      return Refusal{
          {ErrorCode::kNotFound,
           fmt::format("{} is off: the server was started without --control-key", request.path),
           {}}};
    }
    if (keys_.is_operator(header_of(request, "authorization"))) return std::nullopt;
    return Refusal{{ErrorCode::kUnauthenticated,
                    fmt::format("{} needs the server's --control-key: Authorization: Bearer KEY",
                                request.path),
                    {}},
                   bearer_wanted()};
  }
  const bool open = route != nullptr && route->access == RouteAccess::kOpen;
  const bool page = request.path == "/" && wants_page(request);  // it asks for the key itself
  if (open || page || key_of(keys_, request)) return std::nullopt;
  return Refusal{
      {ErrorCode::kUnauthenticated, "this server needs a key: Authorization: Bearer KEY", {}},
      bearer_wanted()};
}

std::optional<ApiServer::Refusal> ApiServer::form_refusal(const HttpRequest& request,
                                                          const Route& route) const {
  const bool gets = std::string_view(route.method) == "GET";
  if (request.method != route.method && !(gets && request.method == "HEAD")) {
    return Refusal{{ErrorCode::kInvalidArgument,
                    fmt::format("{} takes {} only", request.path, route.method),
                    {}},
                   {{"Allow", route.method}},
                   405};
  }
  if (gets && has_body(request)) {
    return Refusal{{ErrorCode::kTooLarge, fmt::format("GET {} takes no body", request.path), {}}};
  }
  // A browser sends a page's request to another host without asking first unless its type is JSON.
  if (!gets && request.headers.contains("origin") && !cors_.allows(header_of(request, "origin")) &&
      !has_json_type(request)) {
    return Refusal{{ErrorCode::kInvalidArgument,
                    "a request with an Origin needs Content-Type: application/json",
                    {}},
                   {{"Accept-Post", "application/json"}},
                   415};
  }
  return std::nullopt;
}

std::optional<ApiServer::Refusal> ApiServer::work_refusal(const Route& route) const {
  if (route.api == nullptr) return std::nullopt;
  if (route.pools == engine_.config().worker.pooling.empty()) {
    return Refusal{{ErrorCode::kInvalidArgument,
                    fmt::format("The model does not support {} API", route.api), "model"}};
  }
  if (drain_.is_set()) return Refusal{{ErrorCode::kUnavailable, "the server is shutting down", {}}};
  if (Status accepting = engine_.accepting(); !accepting) return Refusal{accepting.error()};
  return std::nullopt;
}

std::optional<ApiServer::Refusal> ApiServer::refusal(const HttpRequest& request) const {
  const Route* route = routes_.find(request.path);
  if (auto refused = key_refusal(request, route)) return refused;
  if (route == nullptr) {
    return Refusal{{ErrorCode::kNotFound, fmt::format("there is no route {}", request.path), {}}};
  }
  if (auto refused = form_refusal(request, *route)) return refused;
  return work_refusal(*route);
}

std::optional<HttpReply> ApiServer::check_head(const HttpRequest& request) {
  if (auto preflight = cors_.preflight(request)) {  // which has no key: browsers send none with it
    replies_.metrics()->count_http(preflight->status);
    return preflight;
  }
  auto refused = refusal(request);
  if (!refused) return std::nullopt;
  HttpReply reply = error_reply(refused->error, engine_);
  if (refused->status != 0) {  // no error of the engine means these
    reply.status = refused->status;
    reply.body = error_body(reply.status, refused->error.message);
  }
  if (reply.status == 401 && request.path == "/cudagraphs" && wants_page(request)) {
    reply.content_type = "text/html; charset=utf-8";
    reply.body = cudagraph_key_page();
  }
  for (auto& header : refused->headers) reply.headers.push_back(std::move(header));
  replies_.metrics()->count_http(reply.status);
  return reply;
}

std::string ApiServer::owner_of(const HttpRequest& request) const {
  const auto key = key_of(keys_, request);
  return key == nullptr ? "" : key->name();
}

void ApiServer::handle(HttpRequest request, const Exchange& exchange) {
  if (auto refused = check_head(request)) return exchange->reply(std::move(*refused));
  routes_.find(request.path)->handle(request, exchange);
}

}  // namespace refrain
