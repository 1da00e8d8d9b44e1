#include "runtime/server/api_server.h"

#include <chrono>
#include <random>

#include "runtime/base/build_info.h"
#include "runtime/server/api_response.h"
#include "runtime/server/completion_session.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

constexpr double kHealthySeconds = 10.0;

int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string fresh_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", prefix, random(), random());
}

// Takes the same time wherever the first difference is.
bool equal_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i] ^ other);
  }
  return difference == 0;
}

Result<ApiRequest> parse_request(const std::string& text, bool chat) {
  if (!chat) {
    REFRAIN_ASSIGN_OR_RETURN(const Json body, parse_json(text));
    return parse_completion_request(body);
  }
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered_json(text));
  return parse_chat_request(body);
}

std::string header_of(const HttpRequest& request, const char* name) {
  const auto at = request.headers.find(name);
  return at == request.headers.end() ? std::string() : at->second;
}

}  // namespace

Result<std::vector<TokenId>> tokenize_chat(const TextSide& text,
                                           const OrderedJson& template_input) {
  if (!text.chat_template) {
    return fail_field("messages",
                      "the model has no chat template; use /v1/completions or --chat-template");
  }
  OrderedJson input = template_input;
  const text::SpecialTokens& special = text.tokenizer->special_tokens();
  if (special.bos) input["bos_token"] = *special.bos;
  if (special.eos) input["eos_token"] = *special.eos;
  REFRAIN_ASSIGN_OR_RETURN(const std::string rendered, text.chat_template->render(input));
  return text.tokenizer->encode(rendered, /*add_special_tokens=*/false);
}

ApiServer::ApiServer(Engine& engine, TextSide text, int text_threads)
    : engine_(engine),
      text_(std::move(text)),
      metrics_(std::make_shared<Metrics>(engine.config().served_model_names.front())),
      started_(now_seconds()),
      pool_(text_threads) {}

const std::map<std::string, ApiServer::RouteEntry>& ApiServer::routes() {
  static const std::map<std::string, RouteEntry> table = {
      {"/", {"GET", &ApiServer::get_index, true}},
      {"/live", {"GET", &ApiServer::get_live, true}},
      {"/ready", {"GET", &ApiServer::get_ready, true}},
      {"/health", {"GET", &ApiServer::get_health, true}},
      {"/version", {"GET", &ApiServer::get_version}},
      {"/metrics", {"GET", &ApiServer::get_metrics}},
      {"/cudagraphs", {"GET", &ApiServer::get_cudagraphs}},
      {"/v1/models", {"GET", &ApiServer::get_models}},
      {"/v1/completions", {"POST", &ApiServer::post_completions}},
      {"/v1/chat/completions", {"POST", &ApiServer::post_chat}},
      {"/tokenize", {"POST", &ApiServer::post_tokenize}},
      {"/detokenize", {"POST", &ApiServer::post_detokenize}},
  };
  return table;
}

void ApiServer::handle(HttpRequest request, Exchange exchange) {
  const auto at = routes().find(request.path);
  if (at == routes().end()) {
    const Error error{ErrorCode::kNotFound, fmt::format("there is no route {}", request.path), {}};
    return reply_error(exchange, error);
  }
  const RouteEntry& entry = at->second;
  std::string salt;
  if (!entry.open && !authorised(request, salt)) {
    metrics_->count_http(401);
    const Error error{
        ErrorCode::kUnauthenticated, "this server needs a key: Authorization: Bearer KEY", {}};
    return exchange->reply(401, "application/json", dump(error_json(401, error)),
                           {{"WWW-Authenticate", "Bearer"}});
  }
  const bool head = request.method == "HEAD" && std::string(entry.method) == "GET";
  if (request.method != entry.method && !head) {
    metrics_->count_http(405);
    return exchange->reply(
        405, "application/json",
        error_body(405, fmt::format("{} takes {} only", request.path, entry.method)),
        {{"Allow", entry.method}});
  }
  (this->*entry.route)(request, std::move(exchange));
}

bool ApiServer::authorised(const HttpRequest& request, std::string& salt) const {
  const auto& keys = engine_.config().api_keys;
  if (keys.empty()) return true;
  const std::string given = header_of(request, "authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (given.compare(0, kBearer.size(), kBearer) != 0) return false;
  const std::string secret = given.substr(kBearer.size());
  bool found = false;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (equal_secret(keys[i], secret)) {
      found = true;
      salt = fmt::format("key-{}", i);
    }
  }
  return found;
}

void ApiServer::reply_json(const Exchange& exchange, const Json& json, int status) const {
  metrics_->count_http(status);
  exchange->reply(status, "application/json", dump(json));
}

void ApiServer::reply_error(const Exchange& exchange, const Error& error) const {
  const int status = http_status(error.code);
  metrics_->count_http(status);
  HttpHeaders headers;
  if (status == 429 || status == 503) headers.emplace_back("Retry-After", "1");
  exchange->reply(status, "application/json", dump(error_json(status, error)), std::move(headers));
}

Status ApiServer::check_model(const std::string& name) const {
  const auto& names = engine_.config().served_model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  return tl::make_unexpected(Error{
      ErrorCode::kNotFound,
      fmt::format("the model '{}' does not exist; this server serves '{}'", name, names.front()),
      "model"});
}

Result<std::vector<std::vector<TokenId>>> ApiServer::tokenize(const ApiRequest& request) const {
  std::vector<std::vector<TokenId>> prompts;
  if (request.chat) {
    REFRAIN_ASSIGN_OR_RETURN(auto ids, tokenize_chat(text_, request.template_input));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  for (const Prompt& prompt : request.prompts) {
    if (const auto* given = std::get_if<std::vector<TokenId>>(&prompt)) {
      prompts.push_back(*given);
      continue;
    }
    REFRAIN_ASSIGN_OR_RETURN(auto ids, text_.tokenizer->encode(std::get<std::string>(prompt),
                                                               request.add_special_tokens));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

void ApiServer::complete(const HttpRequest& request, Exchange exchange, bool chat) {
  if (draining_) {
    return reply_error(exchange, {ErrorCode::kUnavailable, "the server is shutting down", {}});
  }
  std::string salt;
  authorised(request, salt);
  pool_.post([this, body_text = request.body, exchange = std::move(exchange), chat, salt] {
    auto parsed = parse_request(body_text, chat);
    if (!parsed) return reply_error(exchange, parsed.error());
    if (auto known = check_model(parsed->model); !known)
      return reply_error(exchange, known.error());
    auto prompts = tokenize(*parsed);
    if (!prompts) return reply_error(exchange, prompts.error());
    AnswerHead head;
    head.id = fresh_id(chat ? "chatcmpl" : "cmpl");
    head.model =
        parsed->model.empty() ? engine_.config().served_model_names.front() : parsed->model;
    head.created = now_seconds();
    head.chat = chat;
    head.logprobs = parsed->logprobs;
    auto session = std::make_shared<CompletionSession>(std::move(*parsed), std::move(head), engine_,
                                                       text_.tokenizer, metrics_, exchange);
    session->start(*prompts, salt);
  });
}

void ApiServer::post_completions(const HttpRequest& request, Exchange exchange) {
  complete(request, std::move(exchange), false);
}

void ApiServer::post_chat(const HttpRequest& request, Exchange exchange) {
  complete(request, std::move(exchange), true);
}

void ApiServer::on_pool(const HttpRequest& request, Exchange exchange,
                        Result<Json> (ApiServer::*work)(const OrderedJson&) const) {
  pool_.post([this, body_text = request.body, exchange = std::move(exchange), work] {
    auto body = parse_ordered_json(body_text);
    if (!body) return reply_error(exchange, body.error());
    if (!body->is_object()) {
      return reply_error(exchange,
                         {ErrorCode::kInvalidArgument, "the body must be a JSON object", {}});
    }
    auto answer = (this->*work)(*body);
    if (!answer) return reply_error(exchange, answer.error());
    reply_json(exchange, *answer);
  });
}

void ApiServer::post_tokenize(const HttpRequest& request, Exchange exchange) {
  on_pool(request, std::move(exchange), &ApiServer::tokenize_body);
}

void ApiServer::post_detokenize(const HttpRequest& request, Exchange exchange) {
  on_pool(request, std::move(exchange), &ApiServer::detokenize_body);
}

Result<Json> ApiServer::tokenize_body(const OrderedJson& ordered) const {
  const Json body(ordered);
  JsonFields fields(body);
  std::vector<TokenId> ids;
  if (fields.has("messages")) {
    REFRAIN_ASSIGN_OR_RETURN(const OrderedJson input, read_template_input(ordered));
    REFRAIN_ASSIGN_OR_RETURN(ids, tokenize_chat(text_, input));
  } else {
    const auto prompt = fields.string("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    REFRAIN_RETURN_IF_ERROR(fields.status());
    if (!prompt) return fail_field("prompt", "prompt is missing");
    REFRAIN_ASSIGN_OR_RETURN(ids, text_.tokenizer->encode(*prompt, special));
  }
  return Json{{"count", ids.size()},
              {"max_model_len", engine_.config().worker.max_model_len},
              {"tokens", ids}};
}

Result<Json> ApiServer::detokenize_body(const OrderedJson& ordered) const {
  const Json body(ordered);
  const Json* tokens = JsonFields(body).get("tokens");
  if (tokens == nullptr) return fail_field("tokens", "tokens is missing");
  REFRAIN_ASSIGN_OR_RETURN(const auto ids, read_token_ids(*tokens, "tokens"));
  for (const TokenId id : ids) {
    if (id >= engine_.model().vocab_size) {
      return fail_field("tokens", "tokens holds {}, but the vocabulary has {} tokens", id,
                        engine_.model().vocab_size);
    }
  }
  return Json{{"prompt", text_.tokenizer->decode(ids, /*skip_special_tokens=*/false)}};
}

void ApiServer::get_models(const HttpRequest&, Exchange exchange) {
  Json data = Json::array();
  for (const std::string& name : engine_.config().served_model_names) {
    data.push_back({{"id", name},
                    {"object", "model"},
                    {"created", started_},
                    {"owned_by", "refrain"},
                    {"root", engine_.config().served_model_names.front()},
                    {"parent", nullptr},
                    {"max_model_len", engine_.config().worker.max_model_len}});
  }
  reply_json(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void ApiServer::get_live(const HttpRequest&, Exchange exchange) {
  reply_json(exchange, {{"status", "live"}});
}

void ApiServer::get_ready(const HttpRequest&, Exchange exchange) {
  const EngineStats stats = engine_.stats();
  const bool ready = stats.state == GroupState::kReady && !draining_;
  reply_json(
      exchange,
      {{"status", draining_ ? "draining" : to_string(stats.state)}, {"detail", stats.state_detail}},
      ready ? 200 : 503);
}

// Healthy: serving, and either nothing to do or a token in the last ten seconds.
void ApiServer::get_health(const HttpRequest&, Exchange exchange) {
  const EngineStats stats = engine_.stats();
  const bool stuck = stats.requests_running > 0 && stats.seconds_since_last_token > kHealthySeconds;
  const bool healthy = stats.state == GroupState::kReady && !stuck;
  reply_json(exchange,
             {{"status", healthy ? "healthy"
                                 : (stuck ? "no token in the last 10 s" : to_string(stats.state))},
              {"epoch", stats.epoch},
              {"requests_running", stats.requests_running},
              {"requests_waiting", stats.requests_waiting}},
             healthy ? 200 : 503);
}

void ApiServer::get_metrics(const HttpRequest&, Exchange exchange) {
  exchange->reply(200, "text/plain; version=0.0.4; charset=utf-8",
                  metrics_->render(engine_.stats()));
}

void ApiServer::get_cudagraphs(const HttpRequest& request, Exchange exchange) {
  const auto format = request.query.find("format");
  const std::string wanted = format == request.query.end() ? "" : format->second;
  const EngineStats stats = engine_.stats();
  if (wanted == "text") {
    return exchange->reply(200, "text/plain; charset=utf-8", cudagraph_text(stats));
  }
  const bool browser = header_of(request, "accept").find("text/html") != std::string::npos;
  if (wanted == "html" || (wanted.empty() && browser)) {
    return exchange->reply(200, "text/html; charset=utf-8", cudagraph_page(stats));
  }
  reply_json(exchange, cudagraph_json(stats));
}

void ApiServer::get_version(const HttpRequest&, Exchange exchange) {
  reply_json(exchange, {{"version", build_id()}});
}

void ApiServer::get_index(const HttpRequest&, Exchange exchange) {
  Json paths = Json::array();
  for (const auto& [path, entry] : routes()) {
    if (path != "/") paths.push_back(fmt::format("{} {}", entry.method, path));
  }
  reply_json(exchange, {{"refrain", build_id()}, {"routes", std::move(paths)}});
}

}  // namespace refrain
