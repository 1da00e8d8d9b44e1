#include "runtime/server/token_routes.h"

#include <iterator>
#include <set>

#include "runtime/server/messages_request.h"
#include "runtime/server/served_models.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

// Names of a body's members that are none of these.
template <class AnyJson>
std::vector<std::string> others(const AnyJson& body, const std::set<std::string>& known) {
  std::vector<std::string> names;
  for (const auto& [name, value] : body.items())
    if (!value.is_null() && !known.contains(name) && names.size() < 8)
      names.push_back(name.substr(0, 64));
  return names;
}

// The request's body, which has been parsed, so that its bytes count no longer.
template <class AnyJson>
Result<AnyJson> object_of(HttpRequest& request, Result<AnyJson> body) {
  request = {};
  if (body && !body->is_object())
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  return body;
}

}  // namespace

void TokenRoutes::add_to(RouteTable& table) {
  const auto add = [&](const char* path, Result<Json> (TokenRoutes::*work)(HttpRequest)) {
    table.add(path, {.method = "POST",
                     .handle = [this, work](HttpRequest& request, const Exchange& exchange) {
                       work_.post_answer(request, exchange, std::bind_front(work, this));
                     }});
  };
  add("/tokenize", &TokenRoutes::tokenize);
  add("/detokenize", &TokenRoutes::detokenize);
  add("/v1/messages/count_tokens", &TokenRoutes::count_tokens);
}

Result<Json> TokenRoutes::tokenize(HttpRequest request) {
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson ordered,
                           object_of(request, parse_ordered_json(request.body)));
  const Json body(ordered);
  JsonFields fields(body);
  std::vector<TokenId> ids;
  REFRAIN_RETURN_IF_ERROR(check_model(engine_, fields.string("model").value_or("")));
  const bool strings = fields.boolean("return_token_strs").value_or(false);
  const bool chat = fields.has("messages");
  if (fields.boolean("add_special_tokens").value_or(!chat) && chat)
    fields.fail_on("add_special_tokens", "must be false in chats: the template writes them");
  REFRAIN_RETURN_IF_ERROR(fields.status());
  ignored_.say(others(
      ordered,
      chat ? std::set<std::string>{"messages", "model", "tools", "tool_choice",
                                   "add_generation_prompt", "continue_final_message",
                                   "add_special_tokens", "return_token_strs", "chat_template",
                                   "chat_template_kwargs", "documents", "reasoning_effort"}
           : std::set<std::string>{"prompt", "model", "add_special_tokens", "return_token_strs"}));
  if (fields.has("messages")) {
    REFRAIN_ASSIGN_OR_RETURN(
        const ChatInput input,
        read_chat_input(ordered, engine_.config().trust_request_chat_template));
    REFRAIN_ASSIGN_OR_RETURN(ChatPrompt chat, tokens_.encode(input));
    ids = std::move(chat.ids);
  } else {
    const auto prompt = fields.string("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    REFRAIN_RETURN_IF_ERROR(fields.status());
    if (!prompt) return fail_field("prompt", "prompt is missing");
    REFRAIN_ASSIGN_OR_RETURN(ids, tokens_.encode(*prompt, special));
  }
  Json texts;
  if (strings) {
    texts = Json::array();
    for (const TokenId id : ids) texts.push_back(tokens_.tokenizer().token_to_string(id));
  }
  return Json{{"count", ids.size()},
              {"max_model_len", engine_.config().worker.max_model_len},
              {"tokens", ids},
              {"token_strs", std::move(texts)}};
}

Result<Json> TokenRoutes::detokenize(HttpRequest request) {
  TokenLists lists;
  REFRAIN_ASSIGN_OR_RETURN(const Json body,
                           object_of(request, parse_json(request.body, "tokens", lists)));
  JsonFields fields(body);
  REFRAIN_RETURN_IF_ERROR(check_model(engine_, fields.string("model").value_or("")));
  REFRAIN_RETURN_IF_ERROR(fields.status());
  ignored_.say(others(body, {"tokens", "model"}));
  const Json* tokens = fields.get("tokens");
  if (tokens == nullptr) return fail_field("tokens", "tokens is missing");
  REFRAIN_ASSIGN_OR_RETURN(const auto ids, rest_of_ids(*tokens, "tokens", std::move(lists.flat)));
  const int64_t most = engine_.config().worker.max_model_len;
  if (std::ssize(ids) > most)
    return fail_field("tokens", "tokens holds {} token ids; at most {} (max_model_len) are taken",
                      ids.size(), most);
  for (const TokenId id : ids) {
    if (id >= engine_.model().vocab_size) {
      return fail_field("tokens", "tokens holds {}, but the vocabulary has {} tokens", id,
                        engine_.model().vocab_size);
    }
  }
  return Json{{"prompt", tokens_.tokenizer().decode(ids, /*skip_special_tokens=*/false)}};
}

Result<Json> TokenRoutes::count_tokens(HttpRequest given) {
  REFRAIN_ASSIGN_OR_RETURN(OrderedJson body, object_of(given, parse_ordered_json(given.body)));
  body["max_tokens"] = 1;  // which this route does without
  REFRAIN_ASSIGN_OR_RETURN(const ApiRequest request,
                           parse_messages_request(body, request_rules(engine_.config())));
  REFRAIN_RETURN_IF_ERROR(check_model(engine_, request.model));
  REFRAIN_ASSIGN_OR_RETURN(const ChatPrompt prompt, tokens_.encode(request.chat_input));
  return Json{{"input_tokens", prompt.ids.size()}};
}

}  // namespace refrain
