// /v1/messages: a chat in Anthropic's shape.
#include "runtime/server/api_server.h"
#include "runtime/server/messages_request.h"
#include "runtime/server/messages_writer.h"

namespace refrain {

void ApiServer::post_messages(HttpRequest& request, const Exchange& exchange) {
  post_text(
      request, exchange, [this](HttpRequest request, KeyLease lease, const Exchange& exchange) {
        const auto body = parse_ordered_json(request.body);
        request = {};
        if (!body) return reply_error(exchange, body.error());
        auto parsed = parse_messages_request(*body, request_rules(engine_.config()));
        if (!parsed) return reply_error(exchange, parsed.error());
        read_request(Reading{
            std::move(*parsed), std::move(lease), exchange, {}, "msg_", make_messages_writer});
      });
}

void ApiServer::post_count_tokens(HttpRequest& request, const Exchange& exchange) {
  on_pool(request, exchange, &ApiServer::count_tokens_body);
}

Result<Json> ApiServer::count_tokens_body(const OrderedJson& given) {
  OrderedJson body = given;
  body["max_tokens"] = 1;  // which this route does without
  REFRAIN_ASSIGN_OR_RETURN(const ApiRequest request,
                           parse_messages_request(body, request_rules(engine_.config())));
  REFRAIN_RETURN_IF_ERROR(check_model(request.model));
  REFRAIN_ASSIGN_OR_RETURN(const ChatPrompt prompt,
                           tokenize_chat(text_, request.chat_input, text_limits()));
  return Json{{"input_tokens", prompt.ids.size()}};
}

}  // namespace refrain
