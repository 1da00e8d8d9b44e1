// /v1/responses: a chat in another shape, and the responses that are kept for later ones.
#include "runtime/server/api_server.h"
#include "runtime/server/responses_writer.h"

namespace refrain {
namespace {

Error not_kept(const std::string& id) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("previous response '{}' is not kept: it was made with store false, by another "
                  "key or before the server's start, or newer ones took its memory",
                  id),
      "previous_response_id"};
}

}  // namespace

void ApiServer::post_responses(HttpRequest& request, const Exchange& exchange) {
  post_text(
      request, exchange, [this](HttpRequest request, KeyLease lease, const Exchange& exchange) {
        const std::string owner = lease.key().name();
        auto parsed = parse_response(request.body, owner);
        request = {};
        if (!parsed) return reply_error(exchange, parsed.error());
        ApiRequest chat = std::move(parsed->chat);
        StoreResponse store;
        if (parsed->store) {
          store = [kept = responses_, owner](const Json& response, const OrderedJson& messages) {
            kept->put(
                owner, text_of(response, "id"),
                {messages.dump(-1, ' ', false, Json::error_handler_t::replace), dump(response)});
          };
        }
        read_request(Reading{std::move(chat),
                             std::move(lease),
                             exchange,
                             {},
                             "resp_",
                             make_responses_writer(std::move(*parsed), std::move(store))});
      });
}

Result<ResponsesRequest> ApiServer::parse_response(const std::string& text,
                                                   const std::string& owner) {
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered_json(text));
  return parse_responses_request(body, request_rules(engine_.config()),
                                 [&](const std::string& id) -> Result<OrderedJson> {
                                   const auto stored = responses_->find(owner, id);
                                   if (!stored) return tl::make_unexpected(not_kept(id));
                                   return OrderedJson::parse(stored->messages);
                                 });
}

void ApiServer::get_response(HttpRequest& request, const Exchange& exchange) {
  const std::string id = request.path.substr(kResponsePath.size());
  const auto stored = responses_->find(key_of(request)->name(), id);
  if (!stored) {
    return reply_error(exchange,
                       {ErrorCode::kNotFound, fmt::format("there is no response '{}'", id), {}});
  }
  metrics_->count_http(200);
  exchange->reply(200, "application/json", stored->response);
}

}  // namespace refrain
