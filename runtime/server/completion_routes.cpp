#include "runtime/server/completion_routes.h"

#include "runtime/server/messages_request.h"
#include "runtime/server/messages_writer.h"
#include "runtime/server/request_head.h"

namespace refrain {
namespace {

Result<ApiRequest> parse_request(const std::string& text, bool chat, const RequestRules& rules) {
  if (!chat) {
    TokenLists ids;
    REFRAIN_ASSIGN_OR_RETURN(const Json body, parse_json(text, "prompt", ids));
    return parse_completion_request(body, std::move(ids), rules);
  }
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered_json(text));
  return parse_chat_request(body, rules);
}

}  // namespace

void CompletionRoutes::add_to(RouteTable& table) {
  const auto completes = [this](bool chat) {
    return [this, chat](HttpRequest& request, const Exchange& exchange) {
      complete(request, exchange, chat);
    };
  };
  table.add("/v1/completions",
            {.method = "POST", .handle = completes(false), .api = "Completions"});
  table.add("/v1/chat/completions",
            {.method = "POST", .handle = completes(true), .api = "Chat Completions"});
  table.add("/v1/messages", {.method = "POST",
                             .handle = std::bind_front(&CompletionRoutes::message, this),
                             .api = "Messages"});
}

void CompletionRoutes::complete(HttpRequest& request, const Exchange& exchange, bool chat) {
  work_.post(request, exchange,
             [this, chat](HttpRequest request, KeyLease lease, const Exchange& exchange) {
               auto own_id = request_id(request);
               if (!own_id) return replies_.error(exchange, own_id.error());
               auto parsed = parse_request(request.body, chat, request_rules(config_));
               request = {};
               if (!parsed) return replies_.error(exchange, parsed.error());
               reader_.start({.request = std::move(*parsed),
                              .lease = std::move(lease),
                              .exchange = exchange,
                              .id_begin = chat ? "chatcmpl-" : "cmpl-",
                              .make_writer = make_openai_writer,
                              .own_id = std::move(*own_id)});
             });
}

void CompletionRoutes::message(HttpRequest& request, const Exchange& exchange) {
  work_.post(request, exchange,
             [this](HttpRequest request, KeyLease lease, const Exchange& exchange) {
               const auto body = parse_ordered_json(request.body);
               request = {};
               if (!body) return replies_.error(exchange, body.error());
               auto parsed = parse_messages_request(*body, request_rules(config_));
               if (!parsed) return replies_.error(exchange, parsed.error());
               reader_.start({.request = std::move(*parsed),
                              .lease = std::move(lease),
                              .exchange = exchange,
                              .id_begin = "msg_",
                              .make_writer = make_messages_writer});
             });
}

}  // namespace refrain
