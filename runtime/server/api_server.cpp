#include "runtime/server/api_server.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <random>

#include "runtime/server/api_response.h"
#include "runtime/server/completion_session.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string fresh_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:016x}", prefix, random(), random());
}

// The client's own, which its answer's id ends with, as in vLLM; empty where it gives none.
Result<std::string> request_id(const HttpRequest& request) {
  const auto found = request.headers.find("x-request-id");
  if (found == request.headers.end()) return std::string();
  const bool plain =
      std::ranges::all_of(found->second, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!plain || found->second.size() > 128)
    return fail(ErrorCode::kInvalidArgument,
                "the header X-Request-Id must be at most 128 visible ASCII characters");
  return found->second;
}

Result<ApiRequest> parse_request(const std::string& text, bool chat, const RequestRules& rules) {
  if (!chat) {
    TokenLists ids;
    REFRAIN_ASSIGN_OR_RETURN(const Json body, parse_json(text, "prompt", ids));
    return parse_completion_request(body, std::move(ids), rules);
  }
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered_json(text));
  return parse_chat_request(body, rules);
}

std::string header_of(const HttpRequest& request, const char* name) {
  const auto at = request.headers.find(name);
  return at == request.headers.end() ? std::string() : at->second;
}

bool is_json(std::string type) {
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type == "application/json";
}

bool has_body(const HttpRequest& request) {
  const std::string length = header_of(request, "content-length");
  return !header_of(request, "transfer-encoding").empty() || (!length.empty() && length != "0");
}

}  // namespace

ApiServer::ApiServer(Engine& engine, TextSide text, ApiKeys keys, int text_threads)
    : engine_(engine),
      text_(std::move(text)),
      keys_(std::move(keys)),
      cors_(engine.config().cors),
      metrics_(std::make_shared<Metrics>(engine.config().served_model_names.front(),
                                         cache_labels(engine.config()))),
      started_(now_seconds()),
      pool_(text_threads, "text") {}

const std::map<std::string, ApiServer::RouteEntry>& ApiServer::routes() {
  static const std::map<std::string, RouteEntry> table = {
      {"/", {"GET", &ApiServer::get_index}},
      {"/dashboard", {"GET", &ApiServer::get_dashboard, true}},
      {"/live", {"GET", &ApiServer::get_live, true}},
      {"/ready", {"GET", &ApiServer::get_ready, true}},
      {"/health", {"GET", &ApiServer::get_health, true}},
      {"/version", {"GET", &ApiServer::get_version}},
      {"/metrics", {"GET", &ApiServer::get_metrics}},
      {"/cudagraphs", {"GET", &ApiServer::get_cudagraphs}},
      {"/drain", {"POST", &ApiServer::post_drain, false, nullptr, false, true}},
      {"/resume", {"POST", &ApiServer::post_resume, false, nullptr, false, true}},
      {"/restart", {"POST", &ApiServer::post_restart, false, nullptr, false, true}},
      {"/v1/models", {"GET", &ApiServer::get_models}},
      {"/v1/load_lora_adapter", {"POST", &ApiServer::post_load_adapter}},
      {"/v1/unload_lora_adapter", {"POST", &ApiServer::post_unload_adapter}},
      {"/v1/completions", {"POST", &ApiServer::post_completions, false, "Completions"}},
      {"/v1/chat/completions", {"POST", &ApiServer::post_chat, false, "Chat Completions"}},
      {"/v1/responses", {"POST", &ApiServer::post_responses, false, "Responses"}},
      {"/v1/messages", {"POST", &ApiServer::post_messages, false, "Messages"}},
      {"/v1/messages/count_tokens", {"POST", &ApiServer::post_count_tokens}},
      {"/v1/embeddings", {"POST", &ApiServer::post_embeddings, false, "Embeddings", true}},
      {"/pooling", {"POST", &ApiServer::post_pooling, false, "Pooling", true}},
      {"/score", {"POST", &ApiServer::post_score, false, "Score", true}},
      {"/v1/score", {"POST", &ApiServer::post_score, false, "Score", true}},
      {"/rerank", {"POST", &ApiServer::post_rerank, false, "Rerank (Score)", true}},
      {"/v1/rerank", {"POST", &ApiServer::post_rerank, false, "Rerank (Score)", true}},
      {"/v2/rerank", {"POST", &ApiServer::post_rerank, false, "Rerank (Score)", true}},
      {"/tokenize", {"POST", &ApiServer::post_tokenize}},
      {"/detokenize", {"POST", &ApiServer::post_detokenize}},
  };
  return table;
}

std::shared_ptr<ApiKey> ApiServer::key_of(const HttpRequest& request) const {
  const std::string bearer = header_of(request, "authorization");
  // Anthropic's clients have the key in a header of its own.
  return keys_.find(bearer.empty() ? "Bearer " + header_of(request, "x-api-key") : bearer);
}

std::optional<Error> ApiServer::refusal(const HttpRequest& request, HttpHeaders& headers) {
  const RouteEntry* at = route_of(request);
  if (at != nullptr && at->control && engine_.config().control_key.empty())
    return Error{
        ErrorCode::kNotFound,
        fmt::format("{} is off: the server was started without --control-key", request.path),
        {}};
  const bool page = request.path == "/" && wants_page(request);  // it asks for the key itself
  if (at != nullptr && at->control) {
    if (!keys_.is_operator(header_of(request, "authorization"))) {
      headers.emplace_back("WWW-Authenticate", "Bearer");
      return Error{ErrorCode::kUnauthenticated,
                   fmt::format("{} needs the server's --control-key: Authorization: Bearer KEY",
                               request.path),
                   {}};
    }
  } else if (!(at != nullptr && at->open) && !page && !key_of(request)) {
    headers.emplace_back("WWW-Authenticate", "Bearer");
    return Error{
        ErrorCode::kUnauthenticated, "this server needs a key: Authorization: Bearer KEY", {}};
  }
  if (at == nullptr) {
    return Error{ErrorCode::kNotFound, fmt::format("there is no route {}", request.path), {}};
  }
  const RouteEntry& entry = *at;
  const bool head = request.method == "HEAD" && std::string_view(entry.method) == "GET";
  if (request.method != entry.method && !head) {
    headers.emplace_back("Allow", entry.method);
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} takes {} only", request.path, entry.method),
                 {}};
  }
  if (std::string_view(entry.method) == "GET" && has_body(request)) {
    return Error{ErrorCode::kTooLarge, fmt::format("GET {} takes no body", request.path), {}};
  }
  // A browser sends a page's request to another host without asking first unless its type is JSON.
  if (std::string_view(entry.method) == "POST" && request.headers.contains("origin") &&
      !cors_.allows(header_of(request, "origin")) && !is_json(header_of(request, "content-type"))) {
    headers.emplace_back("Accept-Post", "application/json");
    return Error{ErrorCode::kInvalidArgument,
                 "a request with an Origin needs Content-Type: application/json",
                 {}};
  }
  if (entry.api == nullptr) return std::nullopt;
  if (entry.pools == engine_.config().worker.pooling.empty())
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The model does not support {} API", entry.api), "model"};
  if (draining_) return Error{ErrorCode::kUnavailable, "the server is shutting down", {}};
  if (Status accepting = engine_.accepting(); !accepting) return accepting.error();
  return std::nullopt;
}

std::optional<HttpReply> ApiServer::check_head(const HttpRequest& request) {
  if (auto preflight = cors_.preflight(request)) {  // which has no key: browsers send none with it
    metrics_->count_http(preflight->status);
    return preflight;
  }
  HttpHeaders headers;
  const auto error = refusal(request, headers);
  if (!error) return std::nullopt;
  HttpReply reply = error_answer(*error);
  const std::string told = headers.empty() ? "" : headers.front().first;
  if (told == "Allow" || told == "Accept-Post") {
    reply.status = told == "Allow" ? 405 : 415;  // no error of the engine means these
    reply.body = error_body(reply.status, error->message);
  }
  if (reply.status == 401 && request.path == "/cudagraphs" && wants_page(request)) {
    reply.content_type = "text/html; charset=utf-8";
    reply.body = cudagraph_key_page();
  }
  for (auto& header : headers) reply.headers.push_back(std::move(header));
  metrics_->count_http(reply.status);
  return reply;
}

void ApiServer::handle(HttpRequest request, const Exchange& exchange) {
  if (auto refused = check_head(request)) return exchange->reply(std::move(*refused));
  (this->*route_of(request)->route)(request, exchange);
}

void ApiServer::reply_json(const Exchange& exchange, const Json& json, int status) const {
  metrics_->count_http(status);
  exchange->reply(status, "application/json", dump(json));
}

HttpReply ApiServer::error_answer(const Error& error) const { return error_reply(error, engine_); }

void ApiServer::reply_error(const Exchange& exchange, const Error& error) const {
  HttpReply reply = error_answer(error);
  metrics_->count_http(reply.status);
  exchange->reply(std::move(reply));
}

Status ApiServer::check_model(const std::string& name) const {
  const auto& names = engine_.config().served_model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  if (engine_.find_adapter(name)) return {};
  return tl::make_unexpected(Error{
      ErrorCode::kNotFound,
      fmt::format("the model '{}' does not exist; this server serves '{}'", name, names.front()),
      "model"});
}

// Parsing and tokenizing take the pool's time. As many may wait for it as for the engine, which
// refuses what cannot start in time.
bool ApiServer::too_many_to_read() const {
  const EngineConfig& config = engine_.config();
  return config.max_queue > 0 && text_tasks_ >= config.worker.max_num_seqs + config.max_queue;
}

void ApiServer::post_text(HttpRequest& request, const Exchange& exchange,
                          std::function<void(HttpRequest, KeyLease, Exchange)> work) {
  KeyLease lease(key_of(request));
  if (Status allowed = lease.take(1); !allowed) {
    metrics_->count_key_limit();
    return reply_error(exchange, allowed.error());
  }
  if (too_many_to_read()) {
    return reply_error(exchange,
                       {ErrorCode::kOverloaded,
                        "as many requests wait to be read as --max-num-seqs and --max-queue allow; "
                        "try again later",
                        {}});
  }
  // A std::function must be copyable, a lease is not.
  struct Held {
    HttpRequest request;
    KeyLease lease;
  };
  auto held = std::make_shared<Held>(Held{std::move(request), std::move(lease)});
  const std::string owner = held->lease.key().name();
  post_turn(owner, exchange, [held, exchange, work = std::move(work)] {
    work(std::move(held->request), std::move(held->lease), exchange);
  });
}

void ApiServer::complete(HttpRequest& request, const Exchange& exchange, bool chat) {
  post_text(request, exchange,
            [this, chat](HttpRequest request, KeyLease lease, const Exchange& exchange) {
              auto own_id = request_id(request);
              if (!own_id) return reply_error(exchange, own_id.error());
              auto parsed = parse_request(request.body, chat, request_rules(engine_.config()));
              request = {};
              if (!parsed) return reply_error(exchange, parsed.error());
              read_request(Reading{std::move(*parsed),
                                   std::move(lease),
                                   exchange,
                                   {},
                                   chat ? "chatcmpl-" : "cmpl-",
                                   make_openai_writer,
                                   std::move(*own_id)});
            });
}

void ApiServer::read_request(Reading reading) {
  ignored_.say(reading.request.ignored);
  if (auto known = check_model(reading.request.model); !known)
    return reply_error(reading.exchange, known.error());
  check_grammar(std::make_shared<Reading>(std::move(reading)));
}

void ApiServer::start_session(Reading& reading) {
  const ApiRequest& request = reading.request;
  AnswerHead head;
  head.id = reading.own_id.empty() ? fresh_id(reading.id_begin) : reading.id_begin + reading.own_id;
  head.model = request.model.empty() ? engine_.config().served_model_names.front() : request.model;
  head.created = now_seconds();
  if (request.pooling) return start_pooling(reading, std::move(head));
  head.chat = request.chat;
  head.logprobs = request.logprobs;
  head.num_logprobs = request.sampling.logprobs;
  head.num_prompt_logprobs = request.prompt_logprobs.value_or(-1);
  head.echo = request.echo;
  head.token_ids = request.return_token_ids;
  head.tokens_as_ids = request.return_tokens_as_token_ids;
  auto session = std::make_shared<CompletionSession>(
      std::move(reading.request), std::move(head), engine_, text_.tokenizer, metrics_,
      std::move(reading.exchange), std::move(reading.lease), reading.make_writer, text_.grammars);
  session->start(std::move(reading.prompts));
}

void ApiServer::post_completions(HttpRequest& request, const Exchange& exchange) {
  complete(request, exchange, false);
}

void ApiServer::post_chat(HttpRequest& request, const Exchange& exchange) {
  complete(request, exchange, true);
}

void ApiServer::on_pool(HttpRequest& request, const Exchange& exchange,
                        Result<Json> (ApiServer::*work)(const OrderedJson&)) {
  post_text(request, exchange,
            [this, work](HttpRequest request, const KeyLease& /*held*/, const Exchange& exchange) {
              auto body = parse_ordered_json(request.body);
              request = {};
              if (!body) return reply_error(exchange, body.error());
              if (!body->is_object()) {
                return reply_error(
                    exchange, {ErrorCode::kInvalidArgument, "the body must be a JSON object", {}});
              }
              auto answer = (this->*work)(*body);
              if (!answer) return reply_error(exchange, answer.error());
              reply_json(exchange, *answer);
            });
}

}  // namespace refrain
