#pragma once
// The body of /v1/messages, Anthropic's shape of a chat, made into one. A pure function.

#include "runtime/server/api_request.h"

namespace refrain {

Result<ApiRequest> parse_messages_request(const OrderedJson& body, const RequestRules& rules);

}  // namespace refrain
