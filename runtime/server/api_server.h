#pragma once
// Routes of the OpenAI-compatible API onto the engine. handle() runs on connections' threads, on
// several at once, and never blocks: tokenising and templates go to the thread pool.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/thread_pool.h"
#include "runtime/engine/engine.h"
#include "runtime/server/api_keys.h"
#include "runtime/server/api_request.h"
#include "runtime/server/http_server.h"
#include "runtime/server/metrics.h"

namespace refrain {
namespace text {
class Tokenizer;
class ChatTemplate;
}  // namespace text

// What a server needs of a model's text side. The template may be null: no chat.
struct TextSide {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
};

// Token ids of one chat (template, then tokenizer); shared with `refrain generate`.
Result<std::vector<TokenId>> tokenize_chat(const TextSide& text, const OrderedJson& template_input);

class ApiServer {
 public:
  ApiServer(Engine& engine, TextSide text, ApiKeys keys, int text_threads);

  // What can be refused without the body: route, method, key, overload.
  std::optional<HttpReply> check_head(const HttpRequest& request);
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  // Text that /metrics ends with, asked for on any thread; before the first request.
  void add_metrics(std::function<std::string()> more) { more_metrics_ = std::move(more); }
  void set_draining() { draining_ = true; }  // /ready turns false, new work is refused

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  using Route = void (ApiServer::*)(const HttpRequest&, Exchange);
  struct RouteEntry {
    const char* method;
    Route route;
    bool open = false;       // needs no key
    bool generates = false;  // takes the engine's time
  };

  std::shared_ptr<ApiKey> key_of(const HttpRequest& request) const;
  std::optional<Error> refusal(const HttpRequest& request, HttpHeaders& headers);
  void post_text(const HttpRequest& request, Exchange exchange,
                 std::function<void(const std::string& body, KeyLease, Exchange)> work);
  bool too_many_to_read() const;
  void complete(const HttpRequest& request, Exchange exchange, bool chat);
  // Takes the prompts out of the request.
  Result<std::vector<std::vector<TokenId>>> tokenize(ApiRequest& request) const;
  Status check_model(const std::string& name) const;
  Result<Json> tokenize_body(const OrderedJson& body) const;
  Result<Json> detokenize_body(const OrderedJson& body) const;
  void reply_json(const Exchange& exchange, const Json& json, int status = 200) const;
  void reply_error(const Exchange& exchange, const Error& error) const;
  HttpReply error_answer(const Error& error) const;
  // Parses the body on this strand, runs `work` on the pool and answers with its result.
  void on_pool(const HttpRequest& request, Exchange exchange,
               Result<Json> (ApiServer::*work)(const OrderedJson&) const);

  void get_models(const HttpRequest&, Exchange);
  void get_live(const HttpRequest&, Exchange);
  void get_ready(const HttpRequest&, Exchange);
  void get_health(const HttpRequest&, Exchange);
  void get_metrics(const HttpRequest&, Exchange);
  void get_cudagraphs(const HttpRequest&, Exchange);
  void get_version(const HttpRequest&, Exchange);
  void get_index(const HttpRequest&, Exchange);
  void post_completions(const HttpRequest&, Exchange);
  void post_chat(const HttpRequest&, Exchange);
  void post_tokenize(const HttpRequest&, Exchange);
  void post_detokenize(const HttpRequest&, Exchange);

  static const std::map<std::string, RouteEntry>& routes();

  Engine& engine_;
  const TextSide text_;
  const ApiKeys keys_;
  const std::shared_ptr<Metrics> metrics_;
  std::function<std::string()> more_metrics_ = [] { return std::string(); };
  const int64_t started_;  // seconds since the epoch, for /v1/models
  std::atomic<bool> draining_{false};
  std::atomic<int> text_tasks_{0};  // bodies that wait to be parsed and tokenized
  ThreadPool pool_;                 // last: what it still runs uses the rest
};

}  // namespace refrain
