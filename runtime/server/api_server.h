#pragma once
// The API over the engine: what refuses a request, and the groups of routes that take the others.
// handle() runs on connections' threads, on several at once, and never blocks: tokenising and
// templates go to TextWork.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/server/adapter_routes.h"
#include "runtime/server/completion_routes.h"
#include "runtime/server/control_routes.h"
#include "runtime/server/cors.h"
#include "runtime/server/model_routes.h"
#include "runtime/server/pooling_routes.h"
#include "runtime/server/response_routes.h"
#include "runtime/server/status_routes.h"
#include "runtime/server/token_routes.h"

namespace refrain {

class ApiServer {
 public:
  ApiServer(Engine& engine, TextSide text, ApiKeys keys, int text_threads);
  ~ApiServer() { work_->end(); }

  // What can be refused without the body: route, method, key, overload.
  std::optional<HttpReply> check_head(const HttpRequest& request);
  std::string owner_of(const HttpRequest& request) const;  // the key's name; empty: it has none
  // What every answer to the request carries besides (CORS).
  HttpHeaders answer_headers(const HttpRequest& request) const {
    return cors_.answer_headers(request);
  }
  void handle(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange);
  // Text that /metrics ends with, asked for on any thread; before the first request.
  void add_metrics(std::function<std::string()> more) { status_.add_metrics(std::move(more)); }
  // Text work ends with errors from here on. Any thread.
  void stop_text() { work_->stop(); }
  void set_draining() { drain_.set(); }  // /ready turns false, new work is refused
  // Ends the server as SIGTERM does, for POST /drain; before the first request. Any thread, once.
  void on_drain(std::function<void()> drain) { drain_.on_drain(std::move(drain)); }

 private:
  // A refusal, and a header that says what would be taken.
  struct Refusal {
    Error error;
    HttpHeaders headers = {};
    int status = 0;  // 0: the error's
  };
  std::optional<Refusal> refusal(const HttpRequest& request) const;
  std::optional<Refusal> key_refusal(const HttpRequest& request, const Route* route) const;
  std::optional<Refusal> form_refusal(const HttpRequest& request, const Route& route) const;
  std::optional<Refusal> work_refusal(const Route& route) const;

  Engine& engine_;
  const TextSide text_;
  const ApiKeys keys_;
  const CorsPolicy cors_;
  const Replies replies_;
  IgnoredFields ignored_;
  DrainSwitch drain_;
  const std::shared_ptr<TextWork> work_;  // sessions may outlive this
  const PromptTokens tokens_;
  RequestReader reader_;
  RouteTable routes_;
  StatusRoutes status_;
  ControlRoutes control_;
  ModelRoutes models_;
  AdapterRoutes adapters_;
  CompletionRoutes completions_;
  ResponseRoutes responses_;
  PoolingRoutes pooling_;
  TokenRoutes token_routes_;
};

}  // namespace refrain
