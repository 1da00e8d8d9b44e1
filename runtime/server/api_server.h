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
#include "runtime/grammar/grammar_helper.h"
#include "runtime/server/answer_writer.h"
#include "runtime/server/api_keys.h"
#include "runtime/server/api_request.h"
#include "runtime/server/cors.h"
#include "runtime/server/http_server.h"
#include "runtime/server/ignored_fields.h"
#include "runtime/server/metrics.h"
#include "runtime/server/response_store.h"
#include "runtime/server/responses_request.h"
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
  std::shared_ptr<GrammarHelper> grammars;  // null: no structured output
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
  void handle(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange);
  // Text that /metrics ends with, asked for on any thread; before the first request.
  void add_metrics(std::function<std::string()> more) { more_metrics_ = std::move(more); }
  // Text work ends with errors from here on. Any thread.
  void stop_text() { stop_text_ = true; }
  void set_draining() { draining_ = true; }  // /ready turns false, new work is refused
  // Ends the server as SIGTERM does, for POST /drain; before the first request. Any thread, once.
  void on_drain(std::function<void()> drain) { drain_ = std::move(drain); }

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  using Route = void (ApiServer::*)(HttpRequest&, const Exchange&);
  struct RouteEntry {
    const char* method;
    Route route;
    bool open = false;          // needs no key
    const char* api = nullptr;  // that takes the engine's time, as vLLM calls it
    bool pools = false;         // of models that pool
    bool control = false;       // an operator's
  };

  std::shared_ptr<ApiKey> key_of(const HttpRequest& request) const;
  std::optional<Error> refusal(const HttpRequest& request, HttpHeaders& headers);
  // `work` takes the request's body, and drops it as soon as it is parsed.
  void post_text(HttpRequest& request, const Exchange& exchange,
                 std::function<void(HttpRequest body, KeyLease, Exchange)> work);
  // `work` on a text thread; keys take turns, and so do the requests of one key. Answers with an
  // error when the work throws.
  void post_turn(const std::string& owner, const Exchange& exchange, std::function<void()> work);
  void complete(HttpRequest& request, const Exchange& exchange, bool chat);
  // A request on its way from text to token ids.
  struct Reading {
    ApiRequest request;
    KeyLease lease;
    Exchange exchange;
    std::vector<std::vector<TokenId>> prompts;  // that are token ids by now
    const char* id_begin = "cmpl-";
    MakeWriter make_writer = make_openai_writer;
    std::string own_id = {};  // what follows id_begin; empty: a fresh one
  };
  void read_request(Reading reading);
  // A grammar that is new is compiled first, by one thread of its own.
  void check_grammar(std::shared_ptr<Reading> reading);
  void read_prompts(std::shared_ptr<Reading> reading);
  void start_session(Reading& reading);
  void pool_prompts(HttpRequest& request, const Exchange& exchange, PoolingRequest::Kind kind,
                    const char* id_begin);
  void start_pooling(Reading& reading, AnswerHead head);
  bool too_many_to_read() const;
  text::TextLimits text_limits() const;
  // Where a prompt that is too long may be cut, only its bytes are limited.
  text::TextLimits text_limits(const ApiRequest& request) const;
  Status truncate(const ApiRequest& request, std::vector<TokenId>& ids) const;
  // Takes the next prompts out of the request, as much text as one turn may take. True: all are
  // out.
  Result<bool> tokenize_some(ApiRequest& request, std::vector<std::vector<TokenId>>& ids) const;
  Status check_model(const std::string& name) const;
  Result<Json> tokenize_body(const OrderedJson& body);
  Result<Json> detokenize_body(const OrderedJson& body);
  Result<Json> count_tokens_body(const OrderedJson& body);
  void reply_json(const Exchange& exchange, const Json& json, int status = 200) const;
  void reply_error(const Exchange& exchange, const Error& error) const;
  HttpReply error_answer(const Error& error) const;
  // Parses the body on this strand, runs `work` on the pool and answers with its result.
  void on_pool(HttpRequest& request, const Exchange& exchange,
               Result<Json> (ApiServer::*work)(const OrderedJson&));

  void get_models(HttpRequest&, const Exchange&);
  void get_model(HttpRequest&, const Exchange&);
  void post_load_adapter(HttpRequest&, const Exchange&);
  void post_unload_adapter(HttpRequest&, const Exchange&);
  void post_drain(HttpRequest&, const Exchange&);
  void post_resume(HttpRequest&, const Exchange&);
  void post_restart(HttpRequest&, const Exchange&);
  void get_live(HttpRequest&, const Exchange&);
  void get_ready(HttpRequest&, const Exchange&);
  void get_health(HttpRequest&, const Exchange&);
  void get_metrics(HttpRequest&, const Exchange&);
  void get_cudagraphs(HttpRequest&, const Exchange&);
  void get_version(HttpRequest&, const Exchange&);
  void get_index(HttpRequest&, const Exchange&);
  void get_dashboard(HttpRequest&, const Exchange&);
  void post_completions(HttpRequest&, const Exchange&);
  void post_chat(HttpRequest&, const Exchange&);
  void post_responses(HttpRequest&, const Exchange&);
  void get_response(HttpRequest&, const Exchange&);
  void post_messages(HttpRequest&, const Exchange&);
  void post_count_tokens(HttpRequest&, const Exchange&);
  void post_embeddings(HttpRequest&, const Exchange&);
  void post_pooling(HttpRequest&, const Exchange&);
  void post_score(HttpRequest&, const Exchange&);
  void post_rerank(HttpRequest&, const Exchange&);
  void post_tokenize(HttpRequest&, const Exchange&);
  void post_detokenize(HttpRequest&, const Exchange&);

  Result<ResponsesRequest> parse_response(const std::string& text, const std::string& owner);
  Json model_json(const std::string& name) const;
  Json adapter_json(const AdapterSource& adapter) const;
  // The body of a route of adapters; and the route answers with a text, as vLLM's does.
  Result<Json> adapter_body(const HttpRequest& request) const;
  Result<AdapterSource> read_adapter(const HttpRequest& request) const;
  // The body of an operator's route; nothing: no group is named.
  Result<std::optional<GroupOrder>> read_group_order(const HttpRequest& request,
                                                     GroupOrder::What what) const;
  void control_group(const Exchange& exchange, const GroupOrder& order) const;
  AdapterDone adapter_answer(const Exchange& exchange, std::string text) const;

  static constexpr std::string_view kResponsePath = "/v1/responses/";  // and the id
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
  // Sessions put their answers there.
  const std::shared_ptr<ResponseStore> responses_ =
      std::make_shared<ResponseStore>(size_t{64} << 20);
  std::function<void()> drain_;  // empty: nobody would end the process
  std::atomic<bool> draining_{false};
  std::atomic<bool> stop_text_{false};
  std::atomic<int> text_tasks_{0};  // bodies that wait to be parsed and tokenized
  ThreadPool grammar_pool_{1, "grammar"};
  ThreadPool pool_;  // last: what it still runs uses the rest
};

}  // namespace refrain
