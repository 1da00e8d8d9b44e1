#include "runtime/server/pooling_routes.h"

#include "runtime/server/pooling_request.h"

namespace refrain {

void PoolingRoutes::add_to(RouteTable& table) {
  using Kind = PoolingRequest::Kind;
  const auto add = [&](const char* path, Kind kind, const char* id_begin, const char* api) {
    table.add(path, {.method = "POST",
                     .handle =
                         [this, kind, id_begin](HttpRequest& request, const Exchange& exchange) {
                           pool(request, exchange, kind, id_begin);
                         },
                     .api = api,
                     .pools = true});
  };
  add("/v1/embeddings", Kind::kEmbeddings, "embd-", "Embeddings");
  add("/pooling", Kind::kPooling, "pool-", "Pooling");
  for (const char* path : {"/score", "/v1/score"}) add(path, Kind::kScore, "score-", "Score");
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"})
    add(path, Kind::kRerank, "rerank-", "Rerank (Score)");
}

void PoolingRoutes::pool(HttpRequest& request, const Exchange& exchange, PoolingRequest::Kind kind,
                         const char* id_begin) {
  work_.post(request, exchange,
             [this, kind, id_begin](HttpRequest request, KeyLease lease, const Exchange& exchange) {
               auto parsed = parse(std::move(request), kind);
               if (!parsed) return replies_.error(exchange, parsed.error());
               reader_.start({.request = std::move(*parsed),
                              .lease = std::move(lease),
                              .exchange = exchange,
                              .id_begin = id_begin});
             });
}

Result<ApiRequest> PoolingRoutes::parse(HttpRequest request, PoolingRequest::Kind kind) const {
  TokenLists ids;
  REFRAIN_ASSIGN_OR_RETURN(const Json body, parse_json(request.body, "input", ids));
  if (!body.contains("messages")) request = {};
  REFRAIN_ASSIGN_OR_RETURN(
      ApiRequest parsed,
      parse_pooling_request(body, std::move(ids), kind, engine_.config(), engine_.model()));
  if (parsed.chat) {
    REFRAIN_ASSIGN_OR_RETURN(const OrderedJson chat, parse_ordered_json(request.body));
    REFRAIN_ASSIGN_OR_RETURN(parsed.chat_input,
                             read_pooled_chat(chat, engine_.config().trust_request_chat_template));
  }
  return parsed;
}

}  // namespace refrain
