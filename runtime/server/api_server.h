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
#include "runtime/server/cors.h"
#include "runtime/server/http_server.h"
#include "runtime/server/ignored_fields.h"
#include "runtime/server/metrics.h"
#include "runtime/text/text_limits.h"

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

// One chat as token ids (template, then tokenizer); shared with `refrain generate`.
struct ChatPrompt {
  std::vector<TokenId> ids;
  text::ThinkingStart thinking = text::ThinkingStart::kUnsaid;
};
Result<ChatPrompt> tokenize_chat(const TextSide& text, const ChatInput& chat,
                                 const text::TextLimits& limits = {});

class ApiServer {
 public:
  ApiServer(Engine& engine, TextSide text, ApiKeys keys, int text_threads);

  ~ApiServer() { stop_text(); }

  // What can be refused without the body: route, method, key, overload.
  std::optional<HttpReply> check_head(const HttpRequest& request);
  // What every answer to the request carries besides (CORS).
  HttpHeaders answer_headers(const HttpRequest& request) const {
    return cors_.answer_headers(request);
  }
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  // Text that /metrics ends with, asked for on any thread; before the first request.
  void add_metrics(std::function<std::string()> more) { more_metrics_ = std::move(more); }
  // Text work ends with errors from here on. Any thread.
  void stop_text() { stop_text_ = true; }
  void set_draining() { draining_ = true; }  // /ready turns false, new work is refused

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  using Route = void (ApiServer::*)(HttpRequest&, Exchange);
  struct RouteEntry {
    const char* method;
    Route route;
    bool open = false;       // needs no key
    bool generates = false;  // takes the engine's time
  };

  std::shared_ptr<ApiKey> key_of(const HttpRequest& request) const;
  std::optional<Error> refusal(const HttpRequest& request, HttpHeaders& headers);
  // `work` takes the request's body, and drops it as soon as it is parsed.
  void post_text(HttpRequest& request, Exchange exchange,
                 std::function<void(HttpRequest body, KeyLease, Exchange)> work);
  // `work` on a text thread; keys take turns, and so do the requests of one key. Answers with an
  // error when the work throws.
  void post_turn(const std::string& owner, Exchange exchange, std::function<void()> work);
  void complete(HttpRequest& request, Exchange exchange, bool chat);
  // A request on its way from text to token ids.
  struct Reading {
    ApiRequest request;
    KeyLease lease;
    Exchange exchange;
    std::vector<std::vector<TokenId>> prompts;  // that are token ids by now
  };
  void read_prompts(std::shared_ptr<Reading> reading);
  void start_session(Reading& reading);
  bool too_many_to_read() const;
  text::TextLimits text_limits() const;
  // Where a prompt that is too long may be cut, only its bytes are limited.
  text::TextLimits text_limits(const ApiRequest& request) const;
  Status truncate(const ApiRequest& request, std::vector<TokenId>& ids) const;
  // Takes the next prompts out of the request, as much text as one turn may take. True: all are
  // out.
  Result<bool> tokenize_some(ApiRequest& request, std::vector<std::vector<TokenId>>& ids) const;
  Status check_model(const std::string& name) const;
  Result<Json> tokenize_body(const OrderedJson& body) const;
  Result<Json> detokenize_body(const OrderedJson& body) const;
  void reply_json(const Exchange& exchange, const Json& json, int status = 200) const;
  void reply_error(const Exchange& exchange, const Error& error) const;
  HttpReply error_answer(const Error& error) const;
  // Parses the body on this strand, runs `work` on the pool and answers with its result.
  void on_pool(HttpRequest& request, Exchange exchange,
               Result<Json> (ApiServer::*work)(const OrderedJson&) const);

  void get_models(HttpRequest&, Exchange);
  void get_model(HttpRequest&, Exchange);
  void get_live(HttpRequest&, Exchange);
  void get_ready(HttpRequest&, Exchange);
  void get_health(HttpRequest&, Exchange);
  void get_metrics(HttpRequest&, Exchange);
  void get_cudagraphs(HttpRequest&, Exchange);
  void get_version(HttpRequest&, Exchange);
  void get_index(HttpRequest&, Exchange);
  void post_completions(HttpRequest&, Exchange);
  void post_chat(HttpRequest&, Exchange);
  void post_tokenize(HttpRequest&, Exchange);
  void post_detokenize(HttpRequest&, Exchange);

  Json model_json(const std::string& name) const;

  static const std::map<std::string, RouteEntry>& routes();
  static const RouteEntry* route_of(const HttpRequest& request);  // null: there is none

  Engine& engine_;
  const TextSide text_;
  const ApiKeys keys_;
  const CorsPolicy cors_;
  const std::shared_ptr<Metrics> metrics_;
  std::function<std::string()> more_metrics_ = [] { return std::string(); };
  const int64_t started_;  // seconds since the epoch, for /v1/models
  IgnoredFields ignored_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stop_text_{false};
  std::atomic<int> text_tasks_{0};  // bodies that wait to be parsed and tokenized
  ThreadPool pool_;                 // last: what it still runs uses the rest
};

}  // namespace refrain
