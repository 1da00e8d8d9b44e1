#pragma once
// The body of /v1/responses: made into a chat, with what its answer repeats. A pure function.

#include <functional>

#include "runtime/server/api_request.h"

namespace refrain {

struct ResponsesRequest {
  ApiRequest chat;
  OrderedJson messages;  // the conversation up to the answer, without instructions
  Json told;             // fields of the request that its answer repeats
  bool store = true;
};

// The conversation of an earlier response, or why there is none.
using FindResponse = std::function<Result<OrderedJson>(const std::string& id)>;

Result<ResponsesRequest> parse_responses_request(const OrderedJson& body, const RequestRules& rules,
                                                 const FindResponse& find);

}  // namespace refrain
