#pragma once
// The answers of /v1/responses: an object with a list of output items, or its events.

#include "runtime/server/answer_writer.h"
#include "runtime/server/responses_request.h"

namespace refrain {

// Called with the finished response and the conversation up to it; null: it is not stored.
using StoreResponse = std::function<void(const Json& response, OrderedJson messages)>;

MakeWriter make_responses_writer(ResponsesRequest request, StoreResponse store);

}  // namespace refrain
