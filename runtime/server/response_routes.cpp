#include "runtime/server/response_routes.h"

#include "runtime/server/request_head.h"
#include "runtime/server/responses_writer.h"

namespace refrain {
namespace {

constexpr std::string_view kPathBegin = "/v1/responses/";  // and the id

Error not_kept(const std::string& id) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("previous response '{}' is not kept: it was made with store false, by another "
                  "key or before the server's start, or newer ones took its memory",
                  id),
      "previous_response_id"};
}

}  // namespace

void ResponseRoutes::add_to(RouteTable& table) {
  table.add("/v1/responses", {.method = "POST",
                              .handle = std::bind_front(&ResponseRoutes::post, this),
                              .api = "Responses"});
  table.add_below(std::string(kPathBegin),
                  {.method = "GET", .handle = std::bind_front(&ResponseRoutes::get, this)});
}

void ResponseRoutes::post(HttpRequest& request, const Exchange& exchange) {
  work_.post(
      request, exchange, [this](HttpRequest request, KeyLease lease, const Exchange& exchange) {
        const std::string owner = lease.key().name();
        auto parsed = parse(request.body, owner);
        request = {};
        if (!parsed) return replies_.error(exchange, parsed.error());
        ApiRequest chat = std::move(parsed->chat);
        StoreResponse store;
        if (parsed->store) {
          store = [kept = kept_, owner](const Json& response, const OrderedJson& messages) {
            kept->put(
                owner, text_of(response, "id"),
                {messages.dump(-1, ' ', false, Json::error_handler_t::replace), dump(response)});
          };
        }
        reader_.start({.request = std::move(chat),
                       .lease = std::move(lease),
                       .exchange = exchange,
                       .id_begin = "resp_",
                       .make_writer = make_responses_writer(std::move(*parsed), std::move(store))});
      });
}

Result<ResponsesRequest> ResponseRoutes::parse(const std::string& text, const std::string& owner) {
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered_json(text));
  return parse_responses_request(body, request_rules(config_),
                                 [&](const std::string& id) -> Result<OrderedJson> {
                                   const auto stored = kept_->find(owner, id);
                                   if (!stored) return tl::make_unexpected(not_kept(id));
                                   return OrderedJson::parse(stored->messages);
                                 });
}

void ResponseRoutes::get(HttpRequest& request, const Exchange& exchange) {
  const std::string id = request.path.substr(kPathBegin.size());
  const auto stored = kept_->find(key_of(keys_, request)->name(), id);
  if (!stored) {
    return replies_.error(exchange,
                          {ErrorCode::kNotFound, fmt::format("there is no response '{}'", id), {}});
  }
  replies_.send(exchange, {200, "application/json", stored->response, {}});
}

}  // namespace refrain
