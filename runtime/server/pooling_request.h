#pragma once
// The bodies of the routes of models that pool: /v1/embeddings, /pooling, /score and /rerank.
// Pure functions; every error names the field.

#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"
#include "runtime/server/api_request.h"

namespace refrain {

// With `messages` it is a chat, which read_pooled_chat() reads from the same body with its keys in
// order. `ids`: token ids of "input" that were taken out of the body when it was parsed.
Result<ApiRequest> parse_pooling_request(const Json& body, TokenLists ids,
                                         PoolingRequest::Kind kind, const EngineConfig& config,
                                         const ModelConfig& model);
Result<ChatInput> read_pooled_chat(const OrderedJson& body, bool trust_chat_template);

}  // namespace refrain
