// The routes of models that pool.
#include <utility>

#include "runtime/server/api_server.h"
#include "runtime/server/pooling_request.h"
#include "runtime/server/pooling_session.h"

namespace refrain {
namespace {

Status read_chat(const std::string& text, bool trust_chat_template, ApiRequest& request) {
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered_json(text));
  REFRAIN_ASSIGN_OR_RETURN(request.chat_input, read_pooled_chat(body, trust_chat_template));
  return {};
}

}  // namespace

void ApiServer::post_embeddings(HttpRequest& request, const Exchange& exchange) {
  pool_prompts(request, exchange, PoolingRequest::Kind::kEmbeddings, "embd-");
}
void ApiServer::post_pooling(HttpRequest& request, const Exchange& exchange) {
  pool_prompts(request, exchange, PoolingRequest::Kind::kPooling, "pool-");
}
void ApiServer::post_score(HttpRequest& request, const Exchange& exchange) {
  pool_prompts(request, exchange, PoolingRequest::Kind::kScore, "score-");
}
void ApiServer::post_rerank(HttpRequest& request, const Exchange& exchange) {
  pool_prompts(request, exchange, PoolingRequest::Kind::kRerank, "rerank-");
}

void ApiServer::pool_prompts(HttpRequest& request, const Exchange& exchange,
                             PoolingRequest::Kind kind, const char* id_begin) {
  post_text(request, exchange,
            [this, kind, id_begin](HttpRequest request, KeyLease lease, const Exchange& exchange) {
              TokenLists ids;
              const auto body = parse_json(request.body, "input", ids);
              if (!body) return reply_error(exchange, body.error());
              if (!body->contains("messages")) request = {};
              auto parsed = parse_pooling_request(*body, std::move(ids), kind, engine_.config(),
                                                  engine_.model());
              if (!parsed) return reply_error(exchange, parsed.error());
              if (parsed->chat) {
                const bool trust = engine_.config().trust_request_chat_template;
                const Status chat = read_chat(request.body, trust, *parsed);
                if (!chat) return reply_error(exchange, chat.error());
                request = {};
              }
              read_request(
                  Reading{std::move(*parsed), std::move(lease), exchange, {}, id_begin, nullptr});
            });
}

void ApiServer::start_pooling(Reading& reading, AnswerHead head) {
  auto session = std::make_shared<PoolingSession>(std::move(reading.request), std::move(head),
                                                  engine_, metrics_, std::move(reading.exchange),
                                                  std::move(reading.lease));
  session->start(std::move(reading.prompts));
}

}  // namespace refrain
